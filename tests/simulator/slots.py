"""Steps of the workers that take a slot's batches in pages."""

from .consumers import EVENTS, TICK
from .model import Consumer, Event
from .sessions import Session
from .steps import step
from .world import MAX_RETRIES, Choices, World

SLOTS = 2
WORKER = "w"
_SLOT = f"%s, 'paged', %s, {SLOTS}, '{WORKER}'"
RECEIVE = (
    "select msg_id, batch_id, payload, coalesce(retry_count, 0)"
    f" from pgque.receive_partitioned({_SLOT}, %s)"
)
ACK = f"select pgque.ack_partitioned({_SLOT})"
_NACK = (
    f"select pgque.nack_partitioned({_SLOT}, row(%s, null, null, null, null, null, null, null,"
    " null, null)::pgque.message, '0')"
)


@step("workers", 15)
async def work_a_page(world: World, choices: Choices, session: Session) -> None:
    """Receives a page, gives some of it back, and acks it or leaves it for another time."""
    number = choices.upto(SLOTS) - 1
    queue = choices.one(list(world.queues))
    slot = world.slots[queue, number]
    mark = world.mark
    await session.run("begin")
    rows = await session.run(RECEIVE, queue, number, choices.one((1, 3, 50)))
    page = [Event(row[0], *row[2:]) for row in rows]
    if not page:
        await session.run("commit")
        return
    batch = rows[0][1]
    ((tick,),) = await session.run(TICK, batch)
    events = [Event(*row) for row in await session.run(EVENTS, batch)]
    failed = choices.some([event.id for event in page], 10)
    for event in failed:
        await session.run(_NACK, queue, number, event)
    acks = choices.percent(75)
    if acks:
        await session.run(ACK, queue, number)
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
    """Compares a page with the batch that it is of, which may be a new one.

    Raises:
        Divergence: if the page is not what comes next, or the batch is not right.
    """
    for earlier in list(slot.open):
        if earlier != batch:
            slot.finish_pages(earlier)
    known = slot.open.get(batch)
    if known is None:
        known = slot.opened(batch, tick, events, alone=alone)
    slot.check_page(known, events, page)
