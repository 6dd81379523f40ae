"""Copies events and rows into tables of a target in PostgreSQL."""

from collections.abc import Sequence

from psycopg import sql

from ...connection import connect
from ...models import Slice
from ...rights import Connection
from ...session import Session
from ..capture import COPY, REQUEST, copy_request
from ..events import REDELIVERED
from ..key_parts import KeyPart
from ..snapshot import Snapshot, kept_columns
from ..source import SourceTable
from .table import CHANGES, TargetTable

# How many bytes of rows are sent at once, because each send is expensive.
_BLOCK = 2**16


def stage_events(
    session: Session,
    there: Connection,
    slices: Sequence[Slice],
    sources: Sequence[SourceTable],
    consumer: str,
) -> None:
    """Copies events of tables into the temporary table, without values that replicas may not have.

    Requests for copies by other consumers are left out.
    """
    mine = sql.SQL("not (ev_type = {} and starts_with(ev_data, {}) and ev_data <> {})").format(
        COPY, REQUEST, copy_request(consumer)
    )
    with connect(session.url) as here:
        cases = [
            sql.SQL("when ev_extra1 = {} then {}").format(each.name, kept_columns(each))
            for each in sources
        ]
        data = sql.SQL(
            "case when ev_type not in ('insert', 'update', 'delete') then '{{}}' {} end"
        ).format(sql.SQL(" ").join(cases))
        for part in slices:
            pipe(
                here,
                "select ev_id, ev_txid, ev_retry, ev_type, ev_extra1, "
                f"{data.as_string(here)} from ({part.sql}) pgque_slice "
                f"where {mine.as_string(here)}",
                there,
                CHANGES,
            )


def staged_kinds(there: Connection) -> dict[str, set[str]]:
    """Returns the types of the staged events, by table."""
    kinds: dict[str, set[str]] = {}
    kind = sql.SQL("case when ev_retry is null then ev_type else {} end").format(REDELIVERED)
    query = sql.SQL("select distinct ev_extra1, {} from {}").format(kind, CHANGES)
    for table, found in there.execute(query):
        kinds.setdefault(table, set()).add(found)
    return kinds


def stage_rows(
    session: Session,
    snapshot: Snapshot,
    table: TargetTable,
    there: Connection,
    into: sql.Identifier,
    part: KeyPart | None = None,
) -> int:
    """Copies the rows of a table or a part, in a snapshot, to another table. Returns how many."""
    (query,) = table.row_queries(session, [part.rows_of(table.source) if part else table.source])
    with snapshot.connected(session.url) as here:
        count, _ = pipe(here, query, there, into)
    there.execute(sql.SQL("analyze {}").format(into))
    return count


def pipe(here: Connection, query: str, there: Connection, into: sql.Identifier) -> tuple[int, int]:
    """Copies the rows of a query into a table of another connection.

    Returns:
        The number of rows, and of bytes of text.
    """
    count, size, block = 0, 0, bytearray()
    with (
        here.cursor().copy(f"copy ({query}) to stdout".encode()) as rows,
        there.cursor().copy(sql.SQL("copy {} from stdin").format(into)) as stored,
    ):
        for row in rows:
            count += 1
            block += row
            if len(block) >= _BLOCK:
                stored.write(bytes(block))
                size += len(block)
                block.clear()
        stored.write(bytes(block))
    return count, size + len(block)
