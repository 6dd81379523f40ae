"""Steps of consumers: plain ones, ones with leases, and workers that share one."""

from collections.abc import Sequence

import psycopg

from .model import Batch, Consumer, Event
from .sessions import Paused, Session
from .steps import step
from .world import MAX_RETRIES, Choices, Holder, World

EVENTS = "select ev_id, ev_data, coalesce(ev_retry, 0) from pgque.get_batch_events(%s)"
_NEXT = "select pgque.next_batch(%s, %s)"
OPEN = "select batch_id from pgque.next_batch_custom(%s, %s, null::interval, null, null, %s)"
CLAIM = "select batch_id, epoch from pgque.claim_batch(%s, %s, %s, %s, i_max_count => %s)"
_SHARED = "select pgque.next_batch(%s, %s, %s, %s::interval)"
TICK = "select tick_id from pgque.get_batch_info(%s)"
_LONG = "1 day"
# Those that are moved, and registered again.
MOVED = ("first", "leased")
_DEAD_LETTERS = """
select d.dl_id, c.co_name, d.ev_data
from pgque.dlq_inspect(%s, null) d join pgque.consumer c on c.co_id = d.dl_consumer_id
order by d.dl_id
"""
# Those that a consumer may go to.
_TICKS = """
select t.tick_id from pgque.queue q
join pgque.tick t on t.tick_queue = q.queue_id and t.tick_id >= q.queue_first_tick
where q.queue_name = %s order by t.tick_id desc limit 50
"""


async def _begin(choices: Choices, session: Session) -> None:
    """Begins a transaction, after whose snapshot others may go on."""
    stricter = choices.percent(25)
    await session.run("begin isolation level repeatable read" if stricter else "begin")
    if stricter or choices.percent(30):
        await session.run("select pg_current_snapshot()")
        await Paused(choices.upto(40 if stricter else 10))


async def _open(
    world: World, choices: Choices, session: Session, holder: Holder
) -> tuple[int | None, int | None]:
    """Opens the holder's next batch, or gets the open one again; returns it with its epoch."""
    queue, name = holder.consumer.queue.name, holder.consumer.name
    most = choices.one((None, 1, 5, 50, 1000, 1000))
    match holder.kind:
        case "plain":
            if most:
                rows = await session.run(OPEN, queue, name, most)
            else:
                rows = await session.run(_NEXT, queue, name)
        case "leased":
            try:
                rows = await session.run(CLAIM, queue, name, holder.worker, _LONG, most)
            except psycopg.Error as error:
                others = sum(h.consumer is holder.consumer for h in world.holders) > 1
                if error.sqlstate != "PQ004" or not others:
                    raise
                return None, None
        case _:
            dead = choices.one((None, None, "0"))
            rows = await session.run(_SHARED, queue, name, holder.worker, dead)
    return (rows[0][0], rows[0][1] if len(rows[0]) > 1 else None) if rows else (None, None)


async def _read(
    world: World, choices: Choices, session: Session, batch: int
) -> tuple[int, Sequence[Event]]:
    """The last tick of an open batch, and its events, read in two ways."""
    tick = await session.value(TICK, batch)
    events = [Event(*row) for row in await session.run(EVENTS, batch)]
    world.check(tick is not None, f"batch {batch} can be read, and is not open")
    if choices.percent(20):
        slices = await session.run(
            "select slice_sql from pgque.batch_read_plan(%s, %s)", batch, choices.upto(3)
        )
        found: list[int] = []
        for (sql,) in slices:
            found += [row[0] for row in await session.run(sql.replace("%", "%%"))]
        world.check(
            sorted(found) == [event.id for event in events],
            f"the slices of batch {batch} have events {found}, and it has {events}",
        )
    return tick, events


async def _opened(world: World, choices: Choices, session: Session, holder: Holder) -> Batch | None:
    """Opens, reads and checks the holder's batch."""
    mark, step, cut_off = world.mark, world.steps, set(holder.cut_off)
    holder.opening.add(step)
    try:
        batch, epoch = await _open(world, choices, session, holder)
        if batch is not None:
            tick, events = await _read(world, choices, session, batch)
            others = await _taken_from(session, holder, batch, events)
            await world.settled()
            taken = holder.kind == "shared" and await session.value(TICK, batch) is None
    except psycopg.Error:
        holder.cut_off.add(step)
        raise
    finally:
        holder.opening.discard(step)
    holder.cut_off -= cut_off  # They had ended before this one began.
    consumer = holder.consumer
    if batch is None:
        world.check(
            not (holder.batch and world.is_alone(mark) and holder.kind in ("plain", "shared")),
            f"{consumer} got no batch, and holds {holder.batch}",
        )
        return None
    if taken and batch not in consumer.batch_ids():
        return None  # A colleague took it over while it was read, and notes it under another id.
    for other in consumer.open.keys() & others:
        consumer.taken_over(other, batch, events)
    alone = world.is_alone(mark) and not world.has_unknown(consumer)
    held = consumer.opened(batch, tick, events, alone=alone)
    known = [h for h in world.holders if h.consumer is consumer and h.batch in (batch, *others)]
    if epoch and any(each.epoch and each.epoch > epoch for each in known):
        return held  # Another session claimed it later, and was noted before.
    for each in known:
        each.batch = each.epoch = None
    holder.batch, holder.epoch = batch, epoch
    return held


async def _taken_from(
    session: Session, holder: Holder, batch: int, events: Sequence[Event]
) -> list[int]:
    """The batch of a colleague that became this one; of those without events it may be any."""
    shares = holder.kind == "shared"
    others = holder.consumer.with_some_of(batch, events) if shares else []
    return [other for other in others if await session.value(TICK, other) is None]


async def _give_back(
    world: World,
    choices: Choices,
    session: Session,
    holder: Holder,
    held: Batch,
    epoch: int | None,
    *,
    commits: bool,
) -> list[tuple[list[int], bool]]:
    """Gives some events of an open batch back, or up.

    Returns which, to be noted after COMMIT; they were noted if each statement `commits`.
    """
    given: list[tuple[list[int], bool]] = []
    lease = (holder.worker, epoch) if epoch else (None, None)
    mark = world.mark
    for dead in (False, True):
        # Also those that were given back before, by an attempt that this one does not know.
        ids = [event.id for event in held.events if choices.percent(12)]
        ids = [event for event in ids if not any(event in earlier for earlier, _ in given)]
        if not ids:
            continue
        if dead:
            sql = "select pgque.dead_letter_batch(%s, %s::bigint[], 'bad', %s, %s)"
        else:
            sql = "select pgque.nack_batch(%s, %s::bigint[], '0', null, %s, %s)"
        count = await session.value(sql, held.id, ids, *lease)
        world.check(
            count == len(ids) or not world.is_alone(mark) or len(holder.consumer.free) > 0,
            f"{count} of the events {ids} of batch {held.id} were given back",
        )
        given.append((ids, dead))
        if commits:
            _note(holder.consumer, held, given[-1:])
    return given


def _note(
    consumer: Consumer,
    held: Batch,
    given: list[tuple[list[int], bool]],
    max_retries: int = MAX_RETRIES,
) -> None:
    for ids, dead in given:
        if held.id in consumer.open:
            consumer.give_back(held.id, ids, max_retries=max_retries, dead=dead)
        else:  # Another session of the same worker finished it, so they count as applied, too.
            consumer.free |= {event.payload for event in held.events if event.id in ids}


@step("workers", 25)
async def open_batch(world: World, choices: Choices, session: Session) -> None:
    await _opened(world, choices, session, choices.one(world.holders))


@step("workers", 40)
async def work(world: World, choices: Choices, session: Session) -> None:
    """Opens a batch if need be, gives some of it back, and acks it, in one transaction or not."""
    holder = choices.one(world.holders)
    held = await _opened(world, choices, session, holder)
    if held is None or held.id not in holder.consumer.open:
        return
    epoch = holder.epoch  # Another session may work for the same holder meanwhile.
    one = choices.percent(50)
    keep = not one or choices.percent(85)
    if one:
        await _begin(choices, session)
    given = await _give_back(world, choices, session, holder, held, epoch, commits=not one)
    if epoch:
        await session.run("select pgque.ack_batch(%s, %s, %s)", held.id, holder.worker, epoch)
    else:
        await session.run("select pgque.finish_batch(%s)", held.id)
    if one:
        await session.run("commit" if keep else "rollback")
    if keep:
        if one:
            _note(holder.consumer, held, given)
        await world.settled()
        world.check(
            holder.batch != held.id or not epoch or not holder.epoch or holder.epoch <= epoch,
            f"batch {held.id} was acked under epoch {epoch}, after {holder.epoch} was given out",
        )
        holder.consumer.finish(held.id)
        holder.batch = holder.epoch = None


@step("workers", 4)
async def retry_batch(world: World, choices: Choices, session: Session) -> None:
    """Gives all events of an open batch back, however often they came."""
    holder = choices.one(world.holders)
    consumer = holder.consumer
    # The call takes no lease, so it is not for those who work with one.
    if holder.kind == "leased" or holder.batch not in consumer.open or world.has_unknown(consumer):
        return
    held = consumer.open[holder.batch]
    await session.run("select pgque.batch_retry(%s, 0)", held.id)
    _note(consumer, held, [([event.id for event in held.events], False)], max_retries=1000)


@step("workers", 10)
async def give_back(world: World, choices: Choices, session: Session) -> None:
    """Gives events back, and leaves the batch open."""
    holder = choices.one(world.holders)
    consumer = holder.consumer
    if holder.batch not in consumer.open or world.has_unknown(consumer):
        return
    held = holder.consumer.open[holder.batch]
    epoch = holder.epoch
    await session.run("begin")
    given = await _give_back(world, choices, session, holder, held, epoch, commits=False)
    await session.run("commit")
    _note(holder.consumer, held, given)


@step("workers", 8)
async def open_and_roll_back(world: World, choices: Choices, session: Session) -> None:
    """A batch whose opening is undone, after it was seen to be right."""
    holder = choices.one(world.holders)
    await session.run("begin")
    mark = world.mark
    batch, _ = await _open(world, choices, session, holder)
    if batch is not None:
        tick, events = await _read(world, choices, session, batch)
        others = await _taken_from(session, holder, batch, events)
        consumer = holder.consumer
        alone = world.is_alone(mark) and not world.has_unknown(consumer)
        if batch not in consumer.open and not others and alone:
            consumer.check(tick, events)
    await session.run("rollback")


@step("workers", 5)
async def release(world: World, choices: Choices, session: Session) -> None:
    """The lease ends; the batch stays open for whoever claims it."""
    holder = choices.one(world.holders)
    if holder.batch and holder.epoch and not world.has_unknown(holder.consumer):
        await session.run(
            "select pgque.release_batch(%s, %s, %s)", holder.batch, holder.worker, holder.epoch
        )
        holder.batch = holder.epoch = None


@step("workers", 5)
async def set_aside(world: World, choices: Choices, session: Session) -> None:
    """The lease ends, and an administrator takes events out of the batch."""
    holder = choices.one([h for h in world.holders if h.consumer.name == "leased"])
    consumer, batch, epoch = holder.consumer, holder.batch, holder.epoch
    if batch not in consumer.open or not epoch or world.has_unknown(consumer):
        return
    held = consumer.open[batch]
    if held.leaving:  # An earlier attempt was cut off.
        return
    ids = choices.some([event.id for event in held.events], 15)
    await session.run("begin")
    await session.run("select pgque.release_batch(%s, %s, %s)", batch, holder.worker, epoch)
    await session.run("select pgque.set_events_aside(%s, %s::bigint[], 'bad')", batch, ids)
    held.leaving |= set(ids)
    await session.run("commit")
    if held.leaving:  # Nobody has read the batch meanwhile.
        consumer.set_aside(held)
    holder.batch = holder.epoch = None


@step("workers", 6)
async def leave(world: World, choices: Choices, session: Session) -> None:
    """A subconsumer leaves with its batch, whose events come again, and is registered again."""
    shared = [h for h in world.holders if h.kind == "shared"]
    holder = choices.one(shared)
    consumer, batch = holder.consumer, holder.batch
    if batch is None or batch not in consumer.open:
        return
    names = (consumer.queue.name, consumer.name, holder.worker)
    await session.run("begin")
    await session.run("select pgque.unregister_subconsumer(%s, %s, %s, 1)", *names)
    await session.run("select pgque.register_subconsumer(%s, %s, %s)", *names)
    await session.run("commit")
    await world.settled()
    if batch in consumer.open:
        ids = {event.id for event in consumer.open[batch].unsettled()}
        consumer.give_back(batch, ids, max_retries=MAX_RETRIES, dead=False)
        consumer.end_unacked(batch)
        holder.batch = None


@step("workers", 4)
async def replay(world: World, choices: Choices, session: Session) -> None:
    """Dead letters of a queue go back to who gave them up, unless their batches are open."""
    queue = choices.one(list(world.queues.values()))
    consumers = {each.name: each for each in world.consumers if each.queue is queue}
    for number, name, payload in await session.run(_DEAD_LETTERS, queue.name):
        consumer = consumers[name]
        mark = world.mark
        refused = False
        try:
            await session.run("select pgque.dlq_replay(%s)", number)
        except psycopg.Error as error:
            if error.sqlstate == "PQ010":  # Another session was first.
                continue
            if error.sqlstate != "PQ016":
                raise
            refused = True
        else:
            consumer.replay([payload])
        # The model ends a batch of pages when the next one comes, and moves are not followed.
        world.check(
            refused == consumer.has_open(payload)
            or name.startswith("paged")
            or payload in consumer.free
            or world.has_unknown(consumer)
            or not world.is_alone(mark),
            f"the replay of {payload} of {consumer} was {'refused' if refused else 'allowed'}",
        )


@step("workers", 4)
async def register_again(world: World, choices: Choices, session: Session) -> None:
    """A consumer without an open batch is unregistered, and starts again at the last tick."""
    consumer = choices.one([h for h in world.holders if h.consumer.name in MOVED]).consumer
    if consumer.open or world.has_unknown(consumer):
        return
    names = (consumer.queue.name, consumer.name)
    await _begin(choices, session)
    mark = world.mark
    if consumer.open or world.has_unknown(consumer) or consumer not in world.consumers:
        await session.run("rollback")
        return
    await session.run("select pgque.unregister_consumer(%s, %s)", *names)
    await session.run("select pgque.register_consumer(%s, %s)", *names)
    ((tick,),) = await session.run("select last_tick from pgque.get_consumer_info(%s, %s)", *names)
    # Otherwise nobody knows whether the batch of another session is before or after it.
    keep = world.is_alone(mark)
    await session.run("commit" if keep else "rollback")
    if keep:
        place = consumer.queue.place(tick)
        world.replace(consumer, Consumer(consumer.queue, consumer.name, place))


@step("workers", 4)
async def seek(world: World, choices: Choices, session: Session) -> None:
    """A consumer without an open batch goes to any tick that is there."""
    consumer = choices.one([h for h in world.holders if h.consumer.name in MOVED]).consumer
    if consumer.open or world.has_unknown(consumer):
        return
    mark = world.mark
    names = (consumer.queue.name, consumer.name)
    await session.run("begin")
    ticks = await session.run(_TICKS, consumer.queue.name)
    position = choices.one(["earliest", "latest", *(str(number) for (number,) in ticks)])
    sql = "select tick_id from pgque.seek(%s, %s, %s, true)"
    try:
        tick = await session.value(sql, *names, position)
    except psycopg.Error as error:
        if error.sqlstate != "PQ005" or world.is_alone(mark):
            raise
        await session.run("rollback")  # Maintenance, for which it waited, removed the tick.
        return
    keep = world.is_alone(mark)
    await session.run("commit" if keep else "rollback")
    if keep:
        world.replace(consumer, consumer.moved(tick))
