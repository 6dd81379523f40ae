"""Records which batches a database has applied, for effects outside the ack's transaction.

A row is written in the transaction of the effect, so both commit or neither does. An attempt that
finds a row skips the effect. If an attempt finds a row twice, or finds a row that it wrote itself,
it has two effects of one name and would lose the second one: this is an error.
"""

import psycopg
from psycopg import sql

from ...client.table_rights import Connection, create_missing_table, needing
from ..written import Written

NAME = "pgque_sink_ledger"
_COLUMNS = (
    "(sink text, batch text, applied_at timestamptz not null default now(), "
    "primary key (sink, batch))"
)
# Distinguishes the row from one with the same key in another database, whatever URL it has.
_ROW = sql.SQL("extract(epoch from applied_at)::text")


class AlreadyApplied(Exception):
    """Another attempt applied the batch while this one worked."""


class Ledger:
    """The table of applied batches. It is created if it is missing.

    Args:
        schema: the table's schema; None for the first schema of the connection's search_path.
        sink: the name of the effect's target.
        written: what this attempt has applied.
        hint: the hint of the error for a second effect on the same target.
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
            InvalidArgument: if this attempt has found or written the row before.
            PermissionDenied: if the ledger is missing and the role may not create it, or if the
                role may not write to it.
        """
        create_missing_table(connection, self._schema, NAME, _COLUMNS, "select, insert", "ledger")
        query = sql.SQL("select {} from {} where sink = {} and batch = {}").format(
            _ROW, self._table, self._sink, batch
        )
        name = self._table.as_string(connection)
        why = "which records the applied batches"
        with needing(connection, "select, insert", name, why):
            # Checks the right to insert before Spark starts.
            connection.execute(sql.SQL("explain {}").format(self._insert(batch)))
            row = connection.execute(query).fetchone()
        if row is None:
            return False
        self._written.add(self._sink, row[0], hint=self._hint)
        return True

    def record(self, connection: Connection, batch: str) -> None:
        """Records that a batch is applied. Call it in the transaction of the effect.

        Raises:
            AlreadyApplied: if the batch was applied before; roll the transaction back.
        """
        try:
            ((row,),) = connection.execute(self._insert(batch)).fetchall()
        except psycopg.errors.UniqueViolation as error:
            raise AlreadyApplied from error
        # Before the commit, so that this process recognizes the row as its own afterwards.
        self._written.add(self._sink, row, hint=self._hint)

    # Values are literals: with parameters, psycopg would take a % in the schema's name for one.
    def _insert(self, batch: str) -> sql.Composed:
        return sql.SQL("insert into {} (sink, batch) values ({}, {}) returning {}").format(
            self._table, self._sink, batch, _ROW
        )
