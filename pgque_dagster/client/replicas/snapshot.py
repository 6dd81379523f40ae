"""Snapshots of the database, in which the rows of captured tables are read."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from ..connection import connect
from ..errors import TransactionOutdated, translated
from ..operation import Call
from ..relay.relay import Relay
from ..relay.setup import is_relayed
from ..rights import Connection
from ..session import Session
from .deletes import HARD, Deletes
from .events import current_row
from .source import SourceTable

_TICK_ATTEMPTS = 5
_BEGIN = "set transaction isolation level repeatable read, read only"
_SETTINGS = "pgque.capture_settings()"
_HASH = "encode(sha256(convert_to({}, 'UTF8')), 'hex')"
_EXPORT = "select pg_export_snapshot(), pg_current_snapshot()::text"


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of the database that other connections can use while its block runs.

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
        """Takes a snapshot for table copies, and keeps it while the block runs.

        Yields:
            The tick of the snapshot if rows are kept; otherwise None, because none is made.

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

    def connected(self, url: str) -> AbstractContextManager[Connection]:
        """Opens a connection that reads in the snapshot, and prints values as events do."""
        return reading(url, f"set transaction snapshot '{self.id}'")


@contextmanager
def reading(url: str, first: str) -> Iterator[Connection]:
    """Opens a connection for one transaction that reads, and prints values as events do.

    Args:
        url: the database.
        first: the statement that begins the transaction, for example a check of its snapshot.
    """
    with connect(url) as connection, translated(), connection.transaction():
        connection.execute(_BEGIN)
        connection.execute(first.encode())
        for (setting,) in connection.execute(f"select {_SETTINGS}").fetchall():
            connection.execute(setting.encode())
        yield connection


def event_queries(session: Session, source: SourceTable, parts: Iterable[str]) -> list[str]:
    """Returns queries for the rows of a table as events.

    `parts` are their FROM clauses: the table or one of its partitions, and possibly a WHERE clause.
    """
    columns, name = _event_columns(session, source), sql.Literal(source.name).as_string(None)
    return [
        "select 0::bigint as ev_id, 'insert' as ev_type, "
        f"row_to_json(pgque_row.*)::text as ev_data, {name} as ev_extra1 "
        f"from (select {columns} from {part}) pgque_row"
        for part in parts
    ]


def value_queries(
    session: Session, source: SourceTable, plain: Mapping[str, str], parts: Iterable[str]
) -> list[str]:
    """Returns queries for the rows of a table, with the columns that its replica has.

    Args:
        session: a session of the table's database.
        source: the table.
        plain: the columns that are read from the table, each with an expression that has {} in
            place of the column. For the others, queries return the text that events have; for
            masked ones, its hash.
        parts: the FROM clause of each query, as for `event_queries`.
    """
    spec = source.spec

    def value(name: str) -> sql.Composable:
        if name in plain:
            return sql.SQL(plain[name]).format(sql.Identifier("pgque_table", name))
        text = sql.SQL("pgque_event.{}").format(sql.Identifier(name))
        if name in spec.mask or name in spec.unstorable:
            # In events, it may be a JSON number or time.
            text = sql.SQL("(to_json({}) #>> '{{}}')").format(text)
        return sql.SQL(_HASH).format(text) if name in spec.mask else text

    values = sql.SQL(", ").join(value(column.name) for column in source.columns).as_string(None)
    event = f"lateral (select {_event_columns(session, source)}) pgque_event"
    return [f"select {values} from (select * from {x}) pgque_table, {event}" for x in parts]


def _event_columns(session: Session, source: SourceTable) -> str:
    """Returns the columns of a table as events have them, for a SELECT."""
    query = "select pgque.capture_columns(%s::regclass)"
    return session.run(Call(query, (source.name,), lambda rows: str(rows[0][0])))


def print_settings(session: Session) -> list[str]:
    """Returns the statements that make a session print values like the triggers of capture()."""
    return session.run(Call(f"select {_SETTINGS}", (), lambda rows: [row[0] for row in rows]))


def kept_columns(source: SourceTable) -> sql.Composable:
    """Returns, as JSON, the part of the row in `ev_data` that its replica may have.

    The source's database does this, so excluded values never leave it.
    """
    spec, data = source.spec, current_row(source.readings)
    if not spec.exclude and not spec.mask:
        return data
    hashed = sql.SQL(_HASH).format(sql.SQL("value #>> '{}'"))
    return sql.SQL(
        "(select json_object_agg(key, case when key = any ({}::text[]) then to_json({})"
        " else value end)::text from json_each(({})::json) where key <> all ({}::text[]))"
    ).format(list(spec.mask), hashed, data, list(spec.exclude))


def _tick(url: str, queue: str, reader: psycopg.Connection[Any]) -> int:
    """Makes a tick whose snapshot `reader` already has when the tick is committed."""

    def share(connection: Connection) -> None:
        ((snapshot,),) = connection.execute("select pg_export_snapshot()").fetchall()
        reader.execute(f"set transaction snapshot '{snapshot}'".encode())

    with connect(url) as connection:
        if is_relayed(connection, queue):
            with Relay.of(url, queue) as relay:
                return relay.tick(share)
        for _ in range(_TICK_ATTEMPTS):
            with suppress(psycopg.errors.SerializationFailure):
                with connection.transaction():
                    connection.execute("set transaction isolation level repeatable read")
                    ((tick_id,),) = connection.execute(
                        "select pgque.snapshot_tick(%s)", [queue]
                    ).fetchall()
                    if tick_id is None:
                        continue
                    share(connection)
                return int(tick_id)
    raise TransactionOutdated(
        f"queue {queue} got no tick in {_TICK_ATTEMPTS} attempts, because other ticks were faster",
        "Verify again.",
    )
