"""Partitioned consumers: slots whose number changes, and workers that take batches in pages."""

from .consumers import EVENTS, TICK
from .model import Consumer, Event, Queue, Sent
from .producers import KEYS
from .sessions import Session
from .steps import step
from .world import MAX_RETRIES, Choices, Holder, World

# One whose slots' batches are taken whole, and one by pages.
PARTITIONED = ("parted", "paged")
WORKER = "w"
_SLOT = f"%s, 'paged', %s, %s, '{WORKER}'"
RECEIVE = (
    "select msg_id, batch_id, payload, coalesce(retry_count, 0)"
    f" from pgque.receive_partitioned({_SLOT}, %s)"
)
ACK = f"select pgque.ack_partitioned({_SLOT})"
_NACK = (
    f"select pgque.nack_partitioned({_SLOT}, row(%s, null, null, null, null, null, null, null,"
    " null, null)::pgque.message, '0')"
)
_CLAIM = f"select pgque.claim_slot(%s, 'paged', %s, '{WORKER}', '1 day')"
_STANDS_AT = """
select max(last_tick) from pgque.get_consumer_info(%s) where consumer_name like %s || '#%%'
"""


def subscribe(world: World, queue: Queue, name: str) -> None:
    """Subscribes two slots, at the first tick."""
    world.watch.execute("select pgque.subscribe_slots(%s, %s, 2)", [queue.name, name])
    _add(world, name, _slots(world, queue, name, 2))
    if name == "paged":
        for number in range(2):
            world.watch.execute(_CLAIM.encode(), [queue.name, number])


def _slots(world: World, queue: Queue, name: str, count: int) -> list[Consumer]:
    """So many slots, each of which wants the events of its keys."""
    sql = "select pgque.slot_of_key(%s, %s)"
    of_key = {
        key: 0 if key is None else world.watch.execute(sql, [key, count]).fetchall()[0][0]
        for key in KEYS
    }

    def slot(number: int) -> Consumer:
        def wants(sent: Sent) -> bool:
            return of_key[sent.key] == number

        return Consumer(queue, f"{name}#{number}/{count}", wants=wants)

    return [slot(number) for number in range(count)]


def _add(world: World, name: str, slots: list[Consumer]) -> None:
    world.consumers += slots
    for number, slot in enumerate(slots):
        if name == "parted":
            world.holders.append(Holder(slot, "leased", "w1"))
        else:
            world.slots[slot.queue.name, number] = slot


def slots_of(world: World, queue: str, name: str) -> list[Consumer]:
    """Returns the slots that a partitioned consumer has now."""
    return [c for c in world.consumers if c.queue.name == queue and c.name.startswith(f"{name}#")]


@step("keeper", 6)
async def repartition(world: World, choices: Choices, session: Session) -> None:
    """Asks for another number of slots, which they have once all stand at one tick."""
    queue, name = choices.one(list(world.queues.values())), choices.one(PARTITIONED)
    count = choices.one([n for n in (1, 2, 3) if n != len(slots_of(world, queue.name, name))])
    mark = world.mark
    await session.run("begin")
    behind = await session.value("select pgque.repartition(%s, %s, %s)", queue.name, name, count)
    tick = await session.value(_STANDS_AT, queue.name, name)
    if name == "paged" and not behind:
        for number in range(count):
            await session.run(_CLAIM, queue.name, number)
    # Otherwise a worker is in the middle of something with a slot that is gone.
    keep = behind or world.is_alone(mark)
    await session.run("commit" if keep else "rollback")
    if keep and not behind:
        earlier = slots_of(world, queue.name, name)
        slots = _slots(world, queue, name, count)
        if name == "paged":
            for number, slot in enumerate(earlier):
                del world.slots[queue.name, number]
                for batch in list(slot.open):
                    slot.finish_pages(batch)
        for slot in slots:
            slot.inherit(earlier, tick)
        world.consumers = [each for each in world.consumers if each not in earlier]
        world.holders = [each for each in world.holders if each.consumer not in earlier]
        _add(world, name, slots)


@step("workers", 15)
async def work_a_page(world: World, choices: Choices, session: Session) -> None:
    """Receives a page, gives some of it back, and acks it or leaves it for another time."""
    queue, number = choices.one(list(world.slots))
    slot = world.slots[queue, number]
    count = len(slots_of(world, queue, "paged"))
    mark = world.mark
    await session.run("begin")
    rows = await session.run(RECEIVE, queue, number, count, choices.one((1, 3, 50)))
    page = [Event(row[0], *row[2:]) for row in rows]
    if not page:
        await session.run("commit")
        return
    batch = rows[0][1]
    ((tick,),) = await session.run(TICK, batch)
    events = [Event(*row) for row in await session.run(EVENTS, batch)]
    failed = choices.some([event.id for event in page], 10)
    for event in failed:
        await session.run(_NACK, queue, number, count, event)
    acks = choices.percent(75)
    if acks:
        await session.run(ACK, queue, number, count)
    keep = choices.percent(85)
    await session.run("commit" if keep else "rollback")
    await world.settled()
    if not keep:
        return
    note_page(slot, batch, tick, events, page, alone=world.is_alone(mark))
    slot.give_back(batch, failed, max_retries=MAX_RETRIES, dead=False)
    if acks:
        slot.apply(batch, {event.id for event in page})


def note_page(
    slot: Consumer,
    batch: int,
    tick: int,
    events: list[Event],
    page: list[Event],
    *,
    alone: bool = True,
) -> None:
    """Compares a page with the batch that it is of, which may be a new one."""
    for earlier in list(slot.open):
        if earlier != batch:
            slot.finish_pages(earlier)
    known = slot.open.get(batch)
    if known is None:
        known = slot.opened(batch, tick, events, alone=alone)
    slot.check_page(known, events, page)
