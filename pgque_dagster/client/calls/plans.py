"""How to read many events side by side: the slices of an open batch, or of a range of ticks."""

from ..models import ReadPlan, Slice
from .call import Call, Row

_COLUMNS = "slice_sql, slice_from, set_columns, batch_events"


def read_plan(batch_id: int, max_slices: int) -> Call[ReadPlan]:
    """A batch split for reading side by side; no slice when it is empty."""
    return Call(
        f"select {_COLUMNS} from pgque.batch_read_plan(%s, %s) order by slice_nr",
        (batch_id, max_slices),
        _parse,
    )


def tick_range_plan(
    queue: str, from_tick: int, to_tick: int, max_slices: int, consumer: str | None = None
) -> Call[ReadPlan]:
    """What came after one tick and up to another, split for reading side by side.

    Args:
        queue: the queue's name.
        from_tick: the tick before the events.
        to_tick: the last tick.
        max_slices: how many slices at the most.
        consumer: whose events that are delivered again are read as well; nobody's for None.
    """
    return Call(
        f"select {_COLUMNS} from pgque.tick_range_read_plan(%s, %s, %s, %s, %s) order by slice_nr",
        (queue, from_tick, to_tick, max_slices, consumer),
        _parse,
    )


def _parse(rows: list[Row]) -> ReadPlan:
    slices = tuple(Slice(sql, rest, tuple(names)) for sql, rest, names, _ in rows)
    return ReadPlan(slices, rows[0][3] if rows else 0)
