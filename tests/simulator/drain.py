"""Rest: everything that is open ends, and each consumer gets all that is left for it."""

from . import slots
from .consumers import CLAIM, EVENTS, OPEN, TICK
from .model import Event
from .operations import END_LEASES
from .sessions import Session
from .steps import step
from .world import Choices, World


@step("watcher", 1)
async def rest(world: World, choices: Choices, session: Session) -> None:
    """No request makes a tick then, so the ticker has to know what a tick left behind."""
    if choices.percent(50):
        drain(world)


def drain(world: World) -> None:
    """Ends what is open, consumes all that is left, and asks whether something never came."""
    world.finish()
    db = world.watch
    _set_lag(world, "0")
    for queue in world.queues:
        for name in slots.PARTITIONED:  # Takes back what was asked for, where the slots wait.
            count = len(slots.slots_of(world, queue, name))
            db.execute("select pgque.repartition(%s, %s, %s)", [queue, name, count])
    db.execute(END_LEASES.encode())
    for _ in range(200):
        db.execute("update pgque.retry_queue set ev_retry_after = now()")
        db.execute("update pgque.delayed_events set de_deliver_at = now()")
        moved = 0
        for call in ("maint_retry_events", "maint_deliver_delayed"):
            moved += db.execute(f"select pgque.{call}()".encode()).fetchall()[0][0]
        db.execute("select pgque.ticker()")
        if not _consume(world) and not moved:
            break
    for consumer in world.consumers:
        consumer.check_all_came()
    for holder in world.holders:
        holder.batch = holder.epoch = None
        holder.cut_off.clear()
    _set_lag(world, "3 seconds")


def _set_lag(world: World, lag: str) -> None:
    """Sets after how much time a tick is due for what came, or what the last one left behind."""
    sql = "select pgque.set_queue_config(%s, 'ticker_max_lag', %s)"
    for name in world.queues:
        world.watch.execute(sql.encode(), [name, lag])


def _consume(world: World) -> int:
    """Finishes the batches that are left; returns how many events were in them."""
    db = world.watch
    count = 0

    def is_ended(batch: int) -> bool:
        return db.execute(TICK.encode(), [batch]).fetchall() == [(None,)]

    for holder in world.holders:
        consumer = holder.consumer
        names = [consumer.queue.name, consumer.name]
        while True:
            if holder.kind == "shared":
                sql = "select pgque.next_batch(%s, %s, %s, '0')"
                rows = db.execute(sql.encode(), [*names, holder.worker]).fetchall()
            elif holder.kind == "leased":
                rows = db.execute(CLAIM.encode(), [*names, "drain", "1 day", 1000]).fetchall()
            else:
                rows = db.execute(OPEN.encode(), [*names, 1000]).fetchall()
            if not rows or rows[0][0] is None:
                break
            batch = rows[0][0]
            found = db.execute(EVENTS.encode(), [batch]).fetchall()
            events = [Event(*row) for row in found]
            ((tick,),) = db.execute(TICK.encode(), [batch]).fetchall()
            for other in consumer.with_some_of(batch, events):
                if holder.kind == "shared" and is_ended(other):
                    consumer.taken_over(other, batch, events)
            consumer.opened(batch, tick, events)
            if holder.kind == "leased":
                db.execute("select pgque.ack_batch(%s, %s, %s)", [batch, "drain", rows[0][1]])
            else:
                db.execute("select pgque.finish_batch(%s)", [batch])
            consumer.finish(batch)
            count += len(events)
    return count + sum(_consume_pages(world, *key) for key in world.slots)


def _consume_pages(world: World, queue: str, number: int) -> int:
    """Acks the pages that are left of a slot; returns how many events were in them."""
    db, slot, count = world.watch, world.slots[queue, number], 0
    of = [queue, number, len(slots.slots_of(world, queue, "paged"))]
    while rows := db.execute(slots.RECEIVE.encode(), [*of, 100]).fetchall():
        page = [Event(row[0], *row[2:]) for row in rows]
        batch = rows[0][1]
        ((tick,),) = db.execute(TICK.encode(), [batch]).fetchall()
        found = db.execute(EVENTS.encode(), [batch]).fetchall()
        slots.note_page(slot, batch, tick, [Event(*row) for row in found], page)
        db.execute(slots.ACK.encode(), of)
        slot.apply(batch, {event.id for event in page})
        count += len(page)
    return count
