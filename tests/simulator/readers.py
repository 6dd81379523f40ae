"""Readers without a position: streams and windows, which read the events between two ticks."""

import psycopg

from .model import Divergence, Queue
from .sessions import Session
from .steps import step
from .world import Choices, World

_TICKS = """
select t.tick_id, t.tick_id >= q.queue_first_tick
from pgque.queue q join pgque.tick t on t.tick_queue = q.queue_id
where q.queue_name = %s order by t.tick_id desc limit 50
"""
_PLAN = "select slice_sql from pgque.tick_range_read_plan(%s, %s, %s, %s)"
_DATA = 5  # The number of the column ev_data in a slice.


@step("workers", 8)
async def read_range(world: World, choices: Choices, session: Session) -> None:
    """Reads what everybody gets between two ticks, or is refused if they are not retained."""
    queue, mark = choices.one(list(world.queues.values())), world.mark
    is_retained: dict[int, bool] = dict(await session.run(_TICKS, queue.name))
    if not is_retained:
        return
    first, last = sorted(choices.one(list(is_retained)) for _ in range(2))
    found: list[str] = []
    try:
        for (sql,) in await session.run(_PLAN, queue.name, first, last, choices.upto(3)):
            found += [row[_DATA] for row in await session.run(sql)]
    except psycopg.Error as error:
        is_beaten = error.sqlstate in ("PQ005", "PQ008") and not world.is_alone(mark)
        if is_beaten or (error.sqlstate == "PQ005" and not is_retained[first]):
            return  # Maintenance removed the tick or the events, before or meanwhile.
        raise
    await world.settled()
    _compare(queue, first, last, found)


def _compare(queue: Queue, first: int, last: int, found: list[str]) -> None:
    begin, end = queue.place(first), queue.place(last)
    must = {sent.payload for sent in queue.log[begin.high : end.low]}
    may = {sent.payload for sent in queue.log[begin.low : end.high]} | queue.late
    if len(set(found)) < len(found) or not must <= set(found) <= may:
        raise Divergence(
            f"from tick {first} to {last}, {queue.name} lacks {sorted(must - set(found))}, and "
            f"{sorted(set(found) - may)} should not be there, of {sorted(found)}"
        )
