"""Which batches a database has applied: for effects that cannot share the ack's transaction.

A row is written in the transaction of the effect, so that the two stand or fall together. An
attempt that finds a row passes the effect by. One that finds a row twice, or finds the row that it
wrote itself, has two effects of one name, and would lose the second: that is an error.
"""

from contextlib import AbstractContextManager, suppress

import psycopg
from psycopg import sql

from ..written import Written
from .rights import Connection, needing

NAME = "pgque_sink_ledger"
_COLUMNS = (
    "(sink text, batch text, applied_at timestamptz not null default now(), "
    "primary key (sink, batch))"
)
# What tells the row from one of the same key in another database, however that is addressed.
_ROW = sql.SQL("extract(epoch from applied_at)::text")


class AlreadyApplied(Exception):
    """Another attempt applied the batch while this one worked."""


class Ledger:
    """The table of what was applied, in a schema of the database; made when it is missing.

    Args:
        schema: where; None for the first of the connection's search_path.
        sink: what was applied to.
        written: what this attempt has applied.
        hint: what to do where the attempt applies to the same again.
    """

    def __init__(self, schema: str | None, sink: str, written: Written, hint: str) -> None:
        self._schema = schema
        self._table = sql.Identifier(*([schema] if schema else []), NAME)
        self._sink = sink
        self._written = written
        self._hint = hint

    def has(self, connection: Connection, batch: str) -> bool:
        """Says whether a batch was applied.

        Raises:
            InvalidArgument: if this attempt knew that already.
            PermissionDenied: if the ledger is missing and the role may not create it, or if the
                role may not write to it.
        """
        self._create(connection)
        query = sql.SQL("select {} from {} where sink = {} and batch = {}").format(
            _ROW, self._table, self._sink, batch
        )
        name = self._table.as_string(connection)
        why = "where it is written down which batches were applied"
        with needing(connection, "select, insert", name, why):
            # Before Spark works, not at its end.
            connection.execute(sql.SQL("explain {}").format(self._insert(batch)))
            row = connection.execute(query).fetchone()
        if row is None:
            return False
        self._written.add(self._sink, row[0], hint=self._hint)
        return True

    def record(self, connection: Connection, batch: str) -> None:
        """Writes down that a batch was applied; belongs into the transaction that does it.

        Raises:
            AlreadyApplied: if it was; the transaction must be rolled back.
        """
        try:
            ((row,),) = connection.execute(self._insert(batch)).fetchall()
        except psycopg.errors.UniqueViolation as error:
            raise AlreadyApplied from error
        # Before the commit: whoever finds the row then in this process knows whose it is.
        self._written.add(self._sink, row, hint=self._hint)

    # Values are literals: with parameters, psycopg would read a % in the schema's name as one.
    def _insert(self, batch: str) -> sql.Composed:
        return sql.SQL("insert into {} (sink, batch) values ({}, {}) returning {}").format(
            self._table, self._sink, batch, _ROW
        )

    def _create(self, connection: Connection) -> None:
        name = self._table.as_string(connection)
        if connection.execute("select to_regclass(%s)", (name,)).fetchone() != (None,):
            return
        statement = sql.SQL("create table {} " + _COLUMNS).format(self._table)
        # Unless another driver is faster.
        with (
            suppress(psycopg.errors.DuplicateTable, psycopg.errors.UniqueViolation),
            self._needing_create(connection),
        ):
            connection.execute(statement)

    def _needing_create(self, connection: Connection) -> AbstractContextManager[None]:
        """Says what somebody else runs where the role may not create the table."""
        schema = self._schema
        if schema is None:
            ((schema,),) = connection.execute("select current_schema()::text").fetchall()
        table, user = (
            sql.Identifier(*names).as_string(connection)
            for names in ((schema, NAME), (connection.info.user,))
        )
        return needing(
            connection,
            "create",
            f"schema {sql.Identifier(schema).as_string(connection)}",
            f"where the ledger {NAME} is missing",
            besides=f" or: create table {table} {_COLUMNS}; "
            f"grant select, insert on {table} to {user};",
        )
