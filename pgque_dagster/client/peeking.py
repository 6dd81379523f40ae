"""Reads retained events without a consumer: nothing is registered, leased or moved."""

from .models import ConsumerInfo, Message, ReadPlan
from .operation import Call, Steps
from .plans import read_plan, tick_range_plan
from .ranges import Position, write_position
from .registrations import check_consumer, read_consumers

_COLUMNS = "ev_id, ev_type, ev_data, ev_retry, ev_time, ev_extra1, ev_extra2, ev_extra3, ev_extra4"
_MAX_COUNT = 2**31 - 1


def retained_ticks(
    queue: str, position: Position | None, max_events: int | None
) -> Call[tuple[int, int]]:
    """Returns two ticks with events between them, after a position or the newest ones.

    Args:
        queue: the queue's name.
        position: where they begin; None for the newest events.
        max_events: how many events are wanted; None for all. One tick alone may have more.
    """
    start = None if position is None else write_position(position)
    return Call(
        "select from_tick, to_tick from pgque.retained_ticks(%s, %s, %s)",
        (queue, start, max_events),
        lambda rows: (rows[0][0], rows[0][1]),
    )


def peek(queue: str, position: Position | None = None, limit: int = 20) -> Steps[list[Message]]:
    """Returns some of the retained events, in order of id, without events that have no tick.

    Args:
        queue: the queue's name.
        position: the first events after this position are wanted; None for the newest ones.
        limit: the maximum number of events.

    Raises:
        QueueNotFound: if there is no such queue.
        InvalidArgument: if the position is invalid, or its events are not retained.
    """
    events: list[Message] = []
    # Ids of rolled-back transactions count too, so the newest ticks may have too few events.
    for count in (None,) if position else (limit, min(limit * 100, _MAX_COUNT), None):
        start, end = yield retained_ticks(queue, position, count)
        plan = yield tick_range_plan(queue, start, end, 1)
        events = yield from _read(plan, limit, newest=position is None)
        if len(events) >= limit:
            break
    return events


def peek_batch(queue: str, consumer: str, limit: int = 20) -> Steps[list[Message]]:
    """Returns the first events of an open batch, including redelivered ones.

    The batch is that of a consumer, a subconsumer or a slot. Without an open batch, these are the
    events that come next, up to the last tick.

    Raises:
        ConsumerNotFound: if the consumer is not registered.
    """
    yield check_consumer(queue, consumer)
    infos: list[ConsumerInfo] = yield from read_consumers(queue)
    (info,) = (each for each in infos if each.name == consumer)
    if info.batch_id is not None:
        plan = yield read_plan(info.batch_id, 1)
    elif info.last_tick_id is None:
        return []
    else:
        _, end = yield retained_ticks(queue, None, 1)
        plan = yield tick_range_plan(queue, info.last_tick_id, end, 1, consumer)
    return (yield from _read(plan, limit, newest=False))


def _read(plan: ReadPlan, limit: int, *, newest: bool) -> Steps[list[Message]]:
    if not plan.slices:
        return []
    order = "desc" if newest else "asc"
    # The server wrote the FROM clauses; there is one for each table.
    slices = " union all ".join(f"select {_COLUMNS} from {slice.rows}" for slice in plan.slices)
    statement = f"select * from ({slices}) e order by ev_id {order} limit {limit}"
    events: list[Message] = yield Call(statement, (), lambda rows: [Message(*row) for row in rows])
    return events[::-1] if newest else events
