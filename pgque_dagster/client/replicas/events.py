"""Finds, in PostgreSQL, which tables have events in a range, and of which types."""

from collections.abc import Sequence

from psycopg import sql

from ..models import Slice
from ..operation import Call
from ..plans import where
from ..session import Session
from .source import Readings

# An event of a TRUNCATE, among those of rows.
TRUNCATE = "truncate"
UPDATE, DELETE = "update", "delete"
ROWS = {"insert", UPDATE, DELETE}
# Stands for the type of an event that is delivered again.
REDELIVERED = "redelivered"
_ROW = sql.SQL(
    "case when ev_type not in ('insert', 'update', 'delete') then ev_data else"
    " case array(select json_object_keys(ev_data::json)) {} else ev_data end end"
)
_CASE = sql.SQL(
    "when {}::text[] then (select json_object_agg(c.name, coalesce(e.value, c.first, 'null'))::text"
    " from unnest({}::text[], {}::int[], {}::json[]) c (name, place, first)"
    " left join json_each(ev_data::json) with ordinality e (key, value, nr) on e.nr = c.place + 1)"
)
_READ = "select ev_id, ev_txid, ev_retry, ev_type, ev_extra1, {} as ev_data from"


def kinds(session: Session, slices: Sequence[Slice]) -> dict[str, set[str]]:
    """Returns the tables of events, each with their types; `REDELIVERED` for redelivered events.

    Raises:
        StaleReadPlan: if the events no longer exist.
    """
    if not slices:
        return {}
    found: dict[str, set[str]] = {}
    kind = sql.SQL("case when ev_retry is null then ev_type else {} end").format(REDELIVERED)
    columns = f"select ev_extra1, {kind.as_string(None)} from "
    query = " union ".join(f"{columns}{part.rows}" for part in slices).replace("%", "%%")
    for table, each in session.run(Call(query, (), list)):
        found.setdefault(table, set()).add(each)
    return found


def current_row(readings: Readings) -> sql.Composable:
    """Returns the row in `ev_data`, as JSON, with the columns that its table has now."""
    if not readings:
        return sql.SQL("ev_data")
    cases = [
        _CASE.format(list(names), *map(list, zip(*columns, strict=True)))
        for names, columns in readings.items()
    ]
    return _ROW.format(sql.SQL(" ").join(cases))


def read_as(slices: Sequence[Slice], readings: Readings) -> tuple[Slice, ...]:
    """Returns events of one table whose rows have the columns that it has now."""
    if not readings:
        return tuple(slices)
    query = sql.SQL(_READ).format(current_row(readings)).as_string(None)
    return tuple(
        Slice(f"{query} ({x.sql}) pgque_old", f"({query} {x.rows}) pgque_now", x.set_columns)
        for x in slices
    )


def after_truncate(session: Session, slices: Sequence[Slice]) -> tuple[Slice, ...]:
    """Returns events without those before the last TRUNCATE, which is among them."""
    found = where(slices, sql.SQL("ev_type = {}").format(TRUNCATE))
    query = " union all ".join(f"select ev_id from {part.rows}" for part in found)
    last = max(session.run(Call(query.replace("%", "%%"), (), list)))[0]
    return where(slices, sql.SQL("ev_id > {}").format(last))
