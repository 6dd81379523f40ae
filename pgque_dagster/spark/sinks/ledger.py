"""Which batches a database has applied: for effects that cannot share the ack's transaction.

A row is written in the transaction of the effect, so that the two stand or fall together.
"""

from contextlib import suppress
from typing import Any

import psycopg
from psycopg import sql

NAME = "pgque_sink_ledger"

Connection = psycopg.Connection[tuple[Any, ...]]


class AlreadyApplied(Exception):
    """Another attempt applied the batch while this one worked."""


class Ledger:
    """The table of what was applied, in a schema of the database; made when it is missing.

    Args:
        schema: where; None for the first of the connection's search_path.
        sink: what was applied to.
    """

    def __init__(self, schema: str | None, sink: str) -> None:
        self._table = sql.Identifier(*([schema] if schema else []), NAME)
        self._sink = sink

    def has(self, connection: Connection, batch: str) -> bool:
        """Says whether a batch was applied."""
        self._create(connection)
        query = sql.SQL("select from {} where sink = %s and batch = %s").format(self._table)
        return connection.execute(query, (self._sink, batch)).fetchone() is not None

    def record(self, connection: Connection, batch: str) -> None:
        """Writes down that a batch was applied; belongs into the transaction that does it.

        Raises:
            AlreadyApplied: if it was; the transaction must be rolled back.
        """
        query = sql.SQL("insert into {} (sink, batch) values (%s, %s)").format(self._table)
        try:
            connection.execute(query, (self._sink, batch))
        except psycopg.errors.UniqueViolation as error:
            raise AlreadyApplied from error

    def _create(self, connection: Connection) -> None:
        name = self._table.as_string(connection)
        if connection.execute("select to_regclass(%s)", (name,)).fetchone() != (None,):
            return
        # Unless another driver is faster.
        with suppress(psycopg.errors.DuplicateTable, psycopg.errors.UniqueViolation):
            connection.execute(
                sql.SQL(
                    "create table {} ("
                    "sink text, batch text, "
                    "applied_at timestamptz not null default now(), "
                    "primary key (sink, batch))"
                ).format(self._table)
            )
