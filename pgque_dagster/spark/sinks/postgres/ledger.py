"""Records which batches a database has applied, for effects outside the ack's transaction.

A row is written in the transaction of the effect, so both commit or neither does. An attempt that
finds a row skips the effect.

A batch has one name; or three: its own, that of its start, and its name before 0.4. Only one batch
of a start counts, so its rows have the first two. An attempt that finds the start alone is refused.

If an attempt finds a row twice, or finds a row that it wrote itself, it has two effects of one name
and would lose the second one: this is an error.
"""

import psycopg
from psycopg import sql

from ....client.errors import InvalidArgument
from ....client.rights import Connection, create_missing_table, needing
from ...written import Written

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

    def has(self, connection: Connection, batch: tuple[str, ...]) -> bool:
        """Says whether a batch was applied.

        Raises:
            InvalidArgument: if this attempt has found or written the row before, or if another
                batch with the same start was applied.
            PermissionDenied: if the ledger is missing and the role may not create it, or if the
                role may not write to it.
        """
        create_missing_table(connection, self._schema, NAME, _COLUMNS, "select, insert", "ledger")
        query = sql.SQL("select batch, {} from {} where sink = {} and batch = any({})").format(
            _ROW, self._table, self._sink, list(batch)
        )
        name = self._table.as_string(connection)
        why = "which records the applied batches"
        with needing(connection, "select, insert", name, why):
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
            self._written.add(self._sink, rows[min(rows)], hint=self._hint)
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
        self._written.add(self._sink, row, hint=self._hint)

    # Values are literals: with parameters, psycopg would take a % in the schema's name for one.
    def _insert(self, batch: tuple[str, ...]) -> sql.Composed:
        return sql.SQL(
            "insert into {} (sink, batch) select {}, unnest({}::text[]) returning {}"
        ).format(self._table, self._sink, list(batch[:2]), _ROW)
