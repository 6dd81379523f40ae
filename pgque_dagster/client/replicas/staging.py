"""Copies events and rows into the temporary tables of a target in PostgreSQL."""

from collections.abc import Sequence

from psycopg import sql

from ..captured_tables import COPY, REQUEST, copy_request
from ..connection import connect
from ..models import Slice
from ..rights import Connection
from ..session import Session
from ..source_tables import SourceTable
from .snapshot import Snapshot, kept_columns, row_queries
from .standing import REDELIVERED
from .target_table import CHANGES, COPIED


def stage_events(
    session: Session,
    there: Connection,
    slices: Sequence[Slice],
    sources: Sequence[SourceTable],
    consumer: str,
) -> None:
    """Copies events of tables into the temporary table for them, with what replicas may have.

    Those that have another consumer copy a table are left out.
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
            _pipe(
                here,
                "select ev_id, ev_txid, ev_retry, ev_type, ev_extra1, "
                f"{data.as_string(here)} from ({part.sql}) pgque_slice "
                f"where {mine.as_string(here)}",
                there,
                CHANGES,
            )


def staged_kinds(there: Connection) -> dict[str, set[str]]:
    """Returns the types of the staged events by the table that they are of."""
    kinds: dict[str, set[str]] = {}
    kind = sql.SQL("case when ev_retry is null then ev_type else {} end").format(REDELIVERED)
    query = sql.SQL("select distinct ev_extra1, {} from {}").format(kind, CHANGES)
    for table, found in there.execute(query):
        kinds.setdefault(table, set()).add(found)
    return kinds


def stage_rows(
    session: Session, snapshot: Snapshot, source: SourceTable, there: Connection
) -> None:
    """Copies the rows of a table in a snapshot into the temporary table for them."""
    there.execute(sql.SQL("truncate {}").format(COPIED))
    (rows,) = row_queries(session, source, [""])
    query = f"select {kept_columns(source).as_string(None)} from ({rows}) pgque_rows"
    with snapshot.connected(session.url) as here:
        _pipe(here, query, there, COPIED)


def _pipe(here: Connection, query: str, there: Connection, into: sql.Identifier) -> None:
    into_table = sql.SQL("copy {} from stdin").format(into)
    with (
        here.cursor().copy(f"copy ({query}) to stdout".encode()) as rows,
        there.cursor().copy(into_table) as stored,
    ):
        for block in rows:
            stored.write(block)
