"""Results of batches in a Postgres table, exactly once."""

from collections.abc import Callable, Sequence

from psycopg import sql
from pyspark.sql import DataFrame

from ...client.connection import connect
from ...client.errors import InvalidArgument, translated
from ..address import DatabaseAddress
from ..batch import SparkBatch
from .ledger import AlreadyApplied, Ledger
from .merge import Merge, Mode
from .once import query_id
from .rights import Connection, needing
from .stage import Stage


class PostgresSink:
    """A table that takes the results of batches; no JDBC driver is needed.

    Executors COPY the rows into a stage, an unlogged table; the driver merges it in one
    transaction. The role needs CREATE in the stage's schema, which is that of the target or
    `stage_schema`. On the target it needs INSERT, and for `upsert` and `add` SELECT and UPDATE,
    too. What it guarantees:

    - In **the queue's own database** the merge is part of the ack's transaction. Whatever is
      killed, and whenever, each batch counts exactly once: before the ack nothing happened, and the
      next attempt does all of it; after it, the batch is not delivered again. An attempt that lost
      its lease merges nothing, since its ack fails.
    - In **another database** (`url`) the merge shares its transaction with a row of the table
      `pgque_sink_ledger`, beside the target, which is created where it is missing. Killed before
      that commits: nothing happened. Killed between it and the ack: the next attempt finds the row
      and merges nothing. So each batch counts exactly once, too; but the effect may show before
      the ack, and stays when the batch fails later.
    - A stage of a driver that died is removed by the next attempt at its batch, or by any write to
      the same schema a day later. One that the server lost in a crash is noticed, and merges
      nothing.

    Args:
        table: the table, as `name` or `schema.name`; it must exist.
        key: columns of a primary key or unique index, for `upsert` and `add`.
        mode: `append` inserts the rows; `upsert` replaces the values of rows with the same key;
            `add` adds the values up, those of the batch among themselves and with those in the
            table.
        url: another database than the queue's, or how driver and executors find it.
        stage_schema: where to make the stage, for a role that may not create tables beside the
            target; a schema of the same database, which must exist.

    Raises:
        InvalidArgument: if mode and key do not fit each other.
    """

    def __init__(
        self,
        table: str,
        *,
        key: Sequence[str] = (),
        mode: Mode = "append",
        url: str | DatabaseAddress | None = None,
        stage_schema: str | None = None,
    ) -> None:
        if mode not in ("append", "upsert", "add"):
            raise InvalidArgument(f"no mode {mode!r}", "Modes are append, upsert and add.")
        if bool(key) != (mode != "append"):
            raise InvalidArgument(
                f"mode {mode} {'needs a' if mode != 'append' else 'has no'} key",
                "A key is for upsert and add: the columns of a unique index.",
            )
        self._table = table
        self._key = tuple(key)
        self._mode: Mode = mode
        self._stage_schema = stage_schema
        self._address = DatabaseAddress(url) if isinstance(url, str) else url

    def write(self, batch: SparkBatch, frame: DataFrame) -> None:
        """Stages a batch's results now; they count with the ack, or at once in another database.

        Args:
            batch: the batch, which may be written to each table once.
            frame: its rows; the names of its columns are the table's.

        Raises:
            InvalidArgument: if the table does not exist, or cannot take these rows by this key.
            PermissionDenied: if the role may not create the stage or the ledger, or not change the
                table; Spark has not worked then.
            StagingLost: if the server crashed meanwhile; the batch must be run again.
            TransactionOutdated: if the merge into another database lost against another
                transaction there; nothing was stored, and the batch must be run again.
        """
        batch.use_sink(self._table, self._address)
        if self._address is not None:
            self._write_once(self._address, batch.identity, frame)
            return
        with connect(batch.url) as connection:
            stage = self._stage(connection, batch.identity, frame)
        stage.fill(batch.address, frame)
        batch.before_ack(stage.merge)

    def foreach_batch(self, *, query: str | None = None) -> Callable[[DataFrame, int], None]:
        """Returns a function for `writeStream.foreachBatch`: each micro-batch counts exactly once.

        The guarantee is that of another database, with the checkpoint in the ack's place.

        Args:
            query: as for `once_per_batch`.

        Raises:
            InvalidArgument: if the sink has no `url`.
        """
        address = self._address
        if address is None:
            raise InvalidArgument("a sink for streams needs the url of its database")

        def write(frame: DataFrame, batch_id: int) -> None:
            self._write_once(address, f"{query or query_id(frame)}/{batch_id}", frame)

        return write

    def _write_once(self, address: DatabaseAddress, batch: str, frame: DataFrame) -> None:
        url = address.resolve()
        with connect(url) as connection:
            schema, name = self._resolve(connection)
            ledger = Ledger(schema, f"{schema}.{name}")
            if ledger.has(connection, batch):
                return
            stage = self._stage(connection, batch, frame)
        stage.fill(address, frame)
        with connect(url) as connection:
            try:
                with translated(), connection.transaction():
                    ledger.record(connection, batch)
                    stage.merge(connection)
            except AlreadyApplied:
                pass  # by an attempt that was thought dead

    def _stage(self, connection: Connection, batch: str, frame: DataFrame) -> Stage:
        schema, name = self._resolve(connection)
        missing = [column for column in self._key if column not in frame.columns]
        if missing:
            raise InvalidArgument(
                f"the DataFrame has no column {', '.join(missing)}",
                f"Rows for {self._table} need the key; there is: {', '.join(frame.columns)}.",
            )
        merge = Merge(sql.Identifier(schema, name), self._mode, self._key, tuple(frame.columns))
        stage = Stage(self._stage_schema or schema, merge, batch)
        stage.create(connection)
        return stage

    def _resolve(self, connection: Connection) -> tuple[str, str]:
        """Returns schema and name of the table."""
        ((schema,),) = connection.execute(
            "select quote_ident((parse_ident(%s))[1])", (self._table,)
        ).fetchall()
        with needing(connection, "usage", f"schema {schema}", f"where {self._table} is"):
            row = connection.execute(
                "select n.nspname::text, c.relname::text from pg_class c"
                " join pg_namespace n on n.oid = c.relnamespace where c.oid = to_regclass(%s)",
                (self._table,),
            ).fetchone()
        if row is None:
            raise InvalidArgument(f"there is no table {self._table}", "Create the table first.")
        return row[0], row[1]
