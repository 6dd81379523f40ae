"""Slices of an open batch, or of a range of ticks, for parallel reading."""

from collections.abc import Iterable

from psycopg import sql

from .models import ReadPlan, Slice
from .operation import Call, Row

_COLUMNS = (
    "slice_sql, slice_from, set_columns,"
    " batch_events, payload_bytes, batch_bytes, oldest_event, newest_event"
)


def read_plan(batch_id: int, max_slices: int) -> Call[ReadPlan]:
    """Splits a batch into slices; an empty batch has no slices."""
    return Call(
        f"select {_COLUMNS} from pgque.batch_read_plan(%s, %s) order by slice_nr",
        (batch_id, max_slices),
        _parse,
    )


def tick_range_plan(
    queue: str, from_tick: int, to_tick: int, max_slices: int, consumer: str | None = None
) -> Call[ReadPlan]:
    """Splits the events after one tick, up to another, into slices.

    It includes the events that are redelivered to `consumer`.
    """
    return Call(
        f"select {_COLUMNS} from pgque.tick_range_read_plan(%s, %s, %s, %s, %s) order by slice_nr",
        (queue, from_tick, to_tick, max_slices, consumer),
        _parse,
    )


def where(slices: Iterable[Slice], condition: sql.Composable) -> tuple[Slice, ...]:
    """Returns slices without the events to which a condition does not apply."""
    only = sql.SQL(" pgque_only where {}").format(condition).as_string(None)
    return tuple(
        Slice(f"select * from ({x.sql}){only}", f"(select * from {x.rows}){only}", x.set_columns)
        for x in slices
    )


def of_table(slices: Iterable[Slice], table: str) -> tuple[Slice, ...]:
    """Returns slices with only the changes of a captured table."""
    return where(slices, sql.SQL("ev_extra1 = {}").format(table))


def is_after(transactions: str, txid: str = "ev_txid") -> sql.Composable:
    """Returns the condition that an event is not in a snapshot: its transaction ended later.

    Args:
        transactions: the snapshot, as `pg_snapshot` prints it: `xmin:xmax:in progress`.
        txid: the column with the transaction.
    """
    # It is xid8 in some slices and bigint in others.
    is_there = sql.SQL("pg_visible_in_snapshot({}::text::xid8, {}::pg_snapshot)")
    return sql.SQL("not ") + is_there.format(sql.Identifier(*txid.split(".")), transactions)


def _parse(rows: list[Row]) -> ReadPlan:
    slices = tuple(Slice(query, rest, tuple(names)) for query, rest, names, *_ in rows)
    return ReadPlan(slices, *rows[0][3:]) if rows else ReadPlan()
