"""Records in a database which batches it has applied, in the transaction that applies them.

So both commit or neither does, and an attempt that finds the batch recorded changes nothing. There
is one table. A Spark sink has a row for each batch, because it accepts batches in any order. A
mover or a replica has one row, for the last batch of its consumer (`last_batch.py`).
"""

from collections.abc import Callable
from contextlib import suppress

import psycopg
from psycopg import sql

from .errors import InvalidArgument, PermissionDenied
from .rights import Connection, needing

NAME = "pgque_sink_ledger"
# Versions before 0.4 made the table for sinks alone, without these columns.
_LAST = (
    "incarnation uuid, batch_id bigint, prev_tick_id bigint, tick_id bigint, fingerprint text,"
    " failed text"
)
_COLUMNS = (
    "(sink text, batch text, applied_at timestamptz not null default now(), "
    f"{_LAST}, primary key (sink, batch))"
)
PURPOSE = "which records the applied batches"
LOCK_WAIT = "10s"
# Distinguishes the row from one with the same key in another database, even at the same URL.
_ROW = sql.SQL("extract(epoch from applied_at)::text")


class AlreadyApplied(Exception):
    """Another attempt applied the batch while this one worked."""


class Ledger:
    """The batches that a sink has applied.

    A batch has one name, or three: its own, the one of its start, and its name before 0.4. Only one
    batch with a given start counts, so its rows have the first two. An attempt that finds only the
    start is refused.

    Args:
        schema: the table's schema; None for the first schema of the connection's search_path.
        sink: the name of the effect's target.
        note: is called with the identity of each row found or written. It refuses a row that
            it has seen before, because the attempt then has two effects of one name, and would
            lose the second one.
    """

    def __init__(self, schema: str | None, sink: str, note: Callable[[str], None]) -> None:
        self._schema = schema
        self._table = sql.Identifier(*([schema] if schema else []), NAME)
        self._sink = sink
        self._note = note

    def has(self, connection: Connection, batch: tuple[str, ...]) -> bool:
        """Returns whether a batch was applied. Creates the table if it is missing.

        Raises:
            InvalidArgument: if this attempt has found or written the row before, or if another
                batch with the same start was applied.
            PermissionDenied: if the ledger is missing and the role may not create it, or if the
                role may not write to it.
        """
        prepare_ledger(connection, self._schema, "select, insert")
        query = sql.SQL("select batch, {} from {} where sink = {} and batch = any({})").format(
            _ROW, self._table, self._sink, list(batch)
        )
        name = self._table.as_string(connection)
        with needing(connection, "select, insert", name, PURPOSE):
            # Checks the right to insert before Spark starts.
            connection.execute(sql.SQL("explain {}").format(self._insert(batch)))
            rows: dict[str, str] = dict(connection.execute(query).fetchall())
        if tuple(rows) == batch[1:2] != ():
            raise InvalidArgument(
                f"{self._sink} has events of {batch[1]} already, up to another tick than this "
                f"micro-batch: {batch[0]}",
                f"Another checkpoint stored them. Their row in {NAME} names the last tick: move "
                "the consumer there (docs/streaming.md), and begin with a new checkpoint.",
            )
        if rows:
            self._note(rows[min(rows)])
        return bool(rows)

    def record(self, connection: Connection, batch: tuple[str, ...]) -> None:
        """Records that a batch is applied. Call it in the transaction of the effect.

        Raises:
            AlreadyApplied: if the batch was applied before; roll the transaction back.
        """
        try:
            ((row,), *_) = connection.execute(self._insert(batch)).fetchall()
        except psycopg.errors.UniqueViolation as error:
            raise AlreadyApplied from error
        # Before the commit, so that this process recognizes the row as its own afterwards.
        self._note(row)

    # Values are literals: with parameters, psycopg would read a % in the schema's name as one.
    def _insert(self, batch: tuple[str, ...]) -> sql.Composed:
        return sql.SQL(
            "insert into {} (sink, batch) select {}, unnest({}::text[]) returning {}"
        ).format(self._table, self._sink, list(batch[:2]), _ROW)


def prepare_ledger(
    connection: Connection, schema: str | None, rights: str, *, for_consumers: bool = False
) -> None:
    """Creates the table, or its columns for consumers, which 0.3.0 did not create, if missing.

    Args:
        connection: a connection outside a transaction.
        schema: the table's schema; None for the first schema of the connection's search_path.
        rights: the rights that its user needs, as in GRANT.
        for_consumers: whether the columns for consumers are needed.

    Raises:
        PermissionDenied: if it is missing and the role may not create it, with the statements that
            an administrator runs instead.
    """
    table = sql.Identifier(*([schema] if schema else []), NAME).as_string(connection)
    found = connection.execute(
        "select bool_or(attname = 'failed') from pg_attribute where attrelid = to_regclass(%s)",
        (table,),
    ).fetchall()[0][0]
    if found or (found is not None and not for_consumers):
        return
    if found is not None:
        _add_columns(connection, table)
        return
    if schema is None:
        ((schema,),) = connection.execute("select current_schema()::text").fetchall()
    if schema is None:
        raise InvalidArgument(
            f"the ledger {NAME} is missing, and the search_path has no schema to create it in",
            "Create a schema, and name it in the search_path of the role.",
        )
    full, place, user = (
        sql.Identifier(*names).as_string(connection)
        for names in ((schema, NAME), (schema,), (connection.info.user,))
    )
    create = f"create table {full} {_COLUMNS}"
    with (
        # If another process creates the table now, its row type may exist before the table is
        # is noticed.
        suppress(
            psycopg.errors.DuplicateTable,
            psycopg.errors.DuplicateObject,
            psycopg.errors.UniqueViolation,
        ),
        needing(
            connection,
            "create",
            f"schema {place}",
            f"where the ledger {NAME} is missing",
            besides=f" or: {create}; grant {rights} on {full} to {user};",
        ),
    ):
        connection.execute(create.encode())


def _add_columns(connection: Connection, table: str) -> None:
    alter = f"alter table {table} " + ", ".join(
        f"add column if not exists {column}" for column in _LAST.split(", ")
    )
    try:
        with connection.transaction():
            connection.execute(f"set local lock_timeout = '{LOCK_WAIT}'".encode())
            connection.execute(alter.encode())
    except psycopg.errors.InsufficientPrivilege as error:
        raise PermissionDenied(
            f"the ledger {table} has no columns for consumers, which a version before 0.4 did not "
            f'need, and role "{connection.info.user}" does not own it',
            f"Let its owner run: {alter};",
        ) from error
