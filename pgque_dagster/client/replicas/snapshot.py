"""Snapshots of the database in which the rows of captured tables are read."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from ..connection import connect
from ..errors import TransactionOutdated, translated
from ..operation import Call
from ..session import Session
from ..source_tables import SourceTable
from .deletes import HARD, Deletes

_TICK_ATTEMPTS = 5
_BEGIN = "set transaction isolation level repeatable read, read only"
_SETTINGS = "pgque.capture_settings()"
_EXPORT = "select pg_export_snapshot(), pg_current_snapshot()::text"


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of the database that other connections can read in while its block runs.

    Attributes:
        id: for `SET TRANSACTION SNAPSHOT`.
        transactions: which transactions it contains, as `pg_snapshot` prints it.
    """

    id: str
    transactions: str

    @staticmethod
    @contextmanager
    def of_tick(url: str, queue: str) -> Iterator[tuple[int, "Snapshot"]]:
        """Makes a tick of a queue, and keeps its snapshot while the block runs.

        Yields:
            The tick, and its snapshot.

        Raises:
            TransactionOutdated: if other tickers were faster each time.
        """
        with connect(url) as reader, translated(), reader.transaction():
            reader.execute(_BEGIN)
            tick_id = _tick(url, queue, reader)
            ((found, transactions),) = reader.execute(_EXPORT).fetchall()
            yield tick_id, Snapshot(found, transactions)

    @staticmethod
    @contextmanager
    def of_copy(url: str, queue: str, deletes: Deletes) -> Iterator[tuple[int | None, "Snapshot"]]:
        """Takes a snapshot for copies of tables, and keeps it while the block runs.

        Yields:
            The tick of the snapshot, which is only made where rows are kept: None otherwise.

        Raises:
            TransactionOutdated: as for `of_tick`.
        """
        if deletes != HARD:
            with Snapshot.of_tick(url, queue) as found:
                yield found
            return
        with connect(url) as connection, translated(), connection.transaction():
            connection.execute(_BEGIN)
            ((found_id, transactions),) = connection.execute(_EXPORT).fetchall()
            yield None, Snapshot(found_id, transactions)

    @contextmanager
    def connected(self, url: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """Opens a connection that reads in the snapshot, and prints values as events have them."""
        with connect(url) as connection, connection.transaction():
            connection.execute(_BEGIN)
            connection.execute(f"set transaction snapshot '{self.id}'".encode())
            for (setting,) in connection.execute(f"select {_SETTINGS}").fetchall():
                connection.execute(setting.encode())
            yield connection


def row_queries(session: Session, source: SourceTable, conditions: Iterable[str]) -> list[str]:
    """Returns queries for the rows of a table as the JSON of its events, in the column ev_data.

    Args:
        session: of the table's database.
        source: the table.
        conditions: the WHERE clause of each query, or an empty text.
    """
    columns = session.run(
        Call("select pgque.capture_columns(%s::regclass)", (source.name,), lambda rows: rows[0][0])
    )
    return [
        "select row_to_json(pgque_row.*)::text as ev_data "
        f"from (select {columns} from {source.name}{where}) pgque_row"
        for where in conditions
    ]


def print_settings(session: Session) -> list[str]:
    """Returns the statements that have a session print values as the triggers of capture() do."""
    return session.run(Call(f"select {_SETTINGS}", (), lambda rows: [row[0] for row in rows]))


def kept_columns(source: SourceTable) -> sql.Composable:
    """Returns the row in `ev_data` as its replica may have it, as JSON.

    Its values pass no other database, and are written as they were.
    """
    spec = source.spec
    if not spec.exclude and not spec.mask:
        return sql.SQL("ev_data")
    return sql.SQL(
        "(select json_object_agg(key, case when key = any ({}::text[])"
        " then to_json(encode(sha256(convert_to(value #>> '{{}}', 'UTF8')), 'hex')) else value end)"
        "::text from json_each(ev_data::json) where key <> all ({}::text[]))"
    ).format(list(spec.mask), list(spec.exclude))


def _tick(url: str, queue: str, reader: psycopg.Connection[Any]) -> int:
    """Makes a tick with a snapshot that `reader` has when the tick is committed."""
    for _ in range(_TICK_ATTEMPTS):
        with connect(url) as connection, suppress(psycopg.errors.SerializationFailure):
            with connection.transaction():
                connection.execute("set transaction isolation level repeatable read")
                ((tick_id,),) = connection.execute(
                    "select pgque.snapshot_tick(%s)", [queue]
                ).fetchall()
                if tick_id is None:
                    continue
                ((snapshot,),) = connection.execute("select pg_export_snapshot()").fetchall()
                reader.execute(f"set transaction snapshot '{snapshot}'".encode())
            return int(tick_id)
    raise TransactionOutdated(
        f"queue {queue} got no tick in {_TICK_ATTEMPTS} attempts, because other ticks were faster",
        "Verify again.",
    )
