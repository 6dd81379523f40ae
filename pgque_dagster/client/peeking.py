"""Reads retained events without a consumer: nothing is registered, leased or moved."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, LiteralString

from .errors import InvalidArgument
from .models import Message
from .operation import Call
from .plans import tick_range_plan
from .queues import check_queue
from .ranges import Position, write_position

if TYPE_CHECKING:
    from .client import Client

_COLUMNS = "ev_id, ev_type, ev_data, ev_retry, ev_time, ev_extra1, ev_extra2, ev_extra3, ev_extra4"

_PAGE = 10_000

# The retained ticks of a queue.
_TICKS = (
    "from pgque.queue q join pgque.tick t"
    " on t.tick_queue = q.queue_id and t.tick_id >= q.queue_first_tick where q.queue_name = %s"
)


def peek(
    client: "Client", queue: str, position: Position | None = None, limit: int = 20
) -> list[Message]:
    """Returns some of the retained events, in order of id. Those without a tick are left out.

    Args:
        client: the database. Its role needs to be a member of pgque_reader.
        queue: the queue's name.
        position: the first events after this position are wanted; None for the newest ones.
        limit: the maximum number of events.

    Raises:
        QueueNotFound: if there is no such queue.
        InvalidArgument: if the position is none, or its events are not retained.
    """
    newest = newest_tick(client, queue)
    if position is None:
        start = client.run(_tick_before_newest(queue, limit))
    else:
        start = tick_of(client, queue, position)
    return read(client, queue, start, newest, limit, newest_first=position is None)


def newest_tick(client: "Client", queue: str) -> int:
    """Returns the newest tick of a queue.

    Raises:
        QueueNotFound: if there is no such queue.
    """
    client.run(check_queue(queue))
    return client.run(_tick(f"select max(t.tick_id) {_TICKS}", queue)) or 0


def tick_of(client: "Client", queue: str, position: Position) -> int:
    """Returns the tick of a position, as `Client.seek` takes it.

    Raises:
        InvalidArgument: if it is no position, or events after it are no longer retained.
    """
    text = write_position(position)
    if text == "latest":
        return newest_tick(client, queue)
    if text.isdigit():
        tick = client.run(_tick(f"select max(t.tick_id) {_TICKS} and t.tick_id = %s", queue, text))
        if tick is None:
            raise InvalidArgument(
                f'queue "{queue}" does not retain tick {text}',
                "Pass a later tick, a time, or earliest.",
            )
        return tick
    oldest = client.run(_tick(f"select min(t.tick_id) {_TICKS}", queue)) or 0
    if text == "earliest":
        return oldest
    before = client.run(_tick(f"select max(t.tick_id) {_TICKS} and t.tick_time < %s", queue, text))
    # Nothing comes before tick 1.
    if before is None and oldest > 1:
        raise InvalidArgument(
            f'queue "{queue}" does not retain all events since {text}',
            "Pass a later time, or earliest.",
        )
    return oldest if before is None else before


def pages(client: "Client", queue: str, start: int, end: int) -> Iterator[list[Message]]:
    """Yields the events after one tick up to another, some thousands at a time.

    They are in order of id between two ticks, and those of several small ticks together.

    Raises:
        TicksUnavailable: if events of the range are no longer retained.
    """
    while start < end:
        stop = client.run(_page_end(queue, start, end))
        last = 0
        while events := read(client, queue, start, stop, _PAGE, after=last):
            yield events
            last = events[-1].msg_id
            if len(events) < _PAGE:
                break
        start = stop


def read(
    client: "Client",
    queue: str,
    start: int,
    end: int,
    limit: int,
    *,
    after: int = 0,
    newest_first: bool = False,
) -> list[Message]:
    """Returns some of the events after one tick up to another, in order of id.

    Args:
        client: the database.
        queue: the queue's name.
        start: the tick before the events.
        end: the last tick.
        limit: the maximum number of events.
        after: the id after which the events come.
        newest_first: whether to keep the newest events within the limit, not the oldest.

    Raises:
        InvalidArgument: if the events after the first tick are not retained.
    """
    plan = client.run(tick_range_plan(queue, start, end, 1))
    if not plan.slices:
        return []
    order = "desc" if newest_first else "asc"
    # The server wrote the FROM clauses; there is one for each table.
    parts = " union all ".join(f"select {_COLUMNS} from {part.rows}" for part in plan.slices)
    statement = (
        f"select * from ({parts}) e where ev_id > {after} order by ev_id {order} limit {limit}"
    )
    events = client.run(Call(statement, (), lambda rows: [Message(*row) for row in rows]))
    return events[::-1] if newest_first else events


def _page_end(queue: str, start: int, end: int) -> Call[int]:
    """The last tick with at most a page of events since the start, else the next tick."""
    return Call(
        "select coalesce(max(t.tick_id) filter (where t.tick_event_seq <= s.tick_event_seq + %s),"
        " min(t.tick_id), %s)"
        f" from (select t.tick_queue, t.tick_id, t.tick_event_seq {_TICKS}"
        " and t.tick_id > %s and t.tick_id <= %s order by t.tick_id limit %s) t"
        " left join pgque.tick s on s.tick_queue = t.tick_queue and s.tick_id = %s",
        (_PAGE, end, queue, start, end, _PAGE, start),
        lambda rows: int(rows[0][0]),
    )


def _tick_before_newest(queue: str, events: int) -> Call[int]:
    """The newest tick after which there are so many events, else the oldest tick."""
    return Call(
        "select coalesce(max(t.tick_id) filter (where t.tick_event_seq <= t.newest - %s),"
        " min(t.tick_id)) from (select t.tick_id, t.tick_event_seq,"
        f" max(t.tick_event_seq) over () as newest {_TICKS}) t",
        (events, queue),
        lambda rows: int(rows[0][0]),
    )


def _tick(statement: LiteralString, *params: object) -> Call[int | None]:
    return Call(statement, params, lambda rows: rows[0][0])
