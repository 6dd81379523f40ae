"""Stores the results of batches in a PostgreSQL table, exactly once."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import get_args

from psycopg import sql
from pyspark.sql import DataFrame

from ....client.connection import connect
from ....client.errors import InvalidArgument, TransactionOutdated, translated
from ....client.ledger import AlreadyApplied, Ledger
from ....client.read_batch import ReadBatch
from ....client.rights import Connection, needing
from ...address import DatabaseAddress
from ...batch import SparkBatch, attempt_of
from ...cluster.lost_lease import cancelled_without_lease
from ...written import Written
from ..members import Stored
from ..modes import check_mode, refuse_window
from .columns import fit
from .member_ledger import MemberLedger
from .merge import Merge, Mode
from .once import micro_batch, written_of
from .stage import Stage

_ANOTHER_NAME = (
    "Unite the DataFrames and write them once, or give this write its own name: "
    "PostgresSink(…, name=…). Keep the name of the first write, which is in the ledger."
)


class PostgresSink:
    """A table for the results of batches. It needs no JDBC driver.

    Executors COPY the rows into a stage, which is an unlogged table, and the driver merges them in
    one transaction. The role needs CREATE in the stage's schema: the target's, or `stage_schema`.
    On the target it needs INSERT, and also SELECT and UPDATE for `upsert` and `add`. Each batch
    counts exactly once, even if a process is killed:

    - In **the queue's own database**, the merge is part of the ack's transaction. An attempt that
      lost its lease merges nothing, because its ack fails.
    - In **another database** (`url`), the merge shares its transaction with a row of the table
      `pgque_sink_ledger` beside the target, which is created if it is missing. The next attempt
      finds the row and merges nothing. The effect may be visible before the ack, and stays if the
      batch fails later.
    - The stage of a write or merge that fails is dropped. The stage of a driver that died is
      removed by the next attempt at its batch, or by a write to the same schema a day later. If
      the server lost a stage in a crash, the merge fails.
    - **Values** are stored unchanged, or the write is refused and nothing is stored. `columns.py`
      and docs/writing.md list the pairs of types.

    Args:
        table: the table, as `name` or `schema.name`; it must exist.
        key: columns of a primary key or unique index, for `upsert` and `add`. A null in them is
            refused.
        mode: `append` inserts the rows; `upsert` replaces the values of rows with the same key;
            `add` adds the values of rows with the same key, within the batch and to the table.
        url: a database other than the queue's, or how driver and executors find it.
        stage_schema: an existing schema of the same database for the stage, for a role that may not
            create tables beside the target.
        name: distinguishes this write of a batch from others to the same table; all but one need a
            name. A batch is written only once under a name, so do not change it.

    Attributes:
        table: the table's name.

    Raises:
        InvalidArgument: if `mode` needs a key and `key` is empty, or the reverse; if `key` is a
            string.
    """

    def __init__(
        self,
        table: str,
        *,
        key: Sequence[str] = (),
        mode: Mode = "append",
        url: str | DatabaseAddress | None = None,
        stage_schema: str | None = None,
        name: str | None = None,
    ) -> None:
        check_mode(mode, key, get_args(Mode), "the columns of a unique index")
        self.table = table
        self._key = tuple(key)
        self._mode: Mode = mode
        self._stage_schema = stage_schema
        self._name = name
        self._address = DatabaseAddress(url) if isinstance(url, str) else url

    def write(self, batch: SparkBatch, frame: DataFrame) -> None:
        """Stages a batch's results now, and merges them at the ack, or now in another database.

        Args:
            batch: the batch. It may be written to each table once under each name.
            frame: its rows, with the table's names of columns.

        Raises:
            InvalidArgument: if the table does not exist, cannot take these rows by this key, or
                would change a value, or if the batch was written to it before.
            MalformedPayload: if a text contains U+0000.
            PermissionDenied: if the role may not create the stage or the ledger, or may not change
                the table. This is checked before Spark starts.
            StagingLost: if the server crashed in between; run the batch again.
            TransactionOutdated: if the merge into another database conflicted with another
                transaction; nothing was stored, so run the batch again.
        """
        claim = batch.claim
        refuse_window(claim, "a table of PostgreSQL")
        with cancelled_without_lease(batch.spark, claim):
            if self._address is None and not claim.is_final:
                batch.before_ack(self._staged(batch, frame))
                return
            ledger: Callable[[str, str], Ledger | MemberLedger]
            if claim.is_final:
                name, ledger = f"vector {claim.batch_id}", partial(MemberLedger, claim=claim)
            else:
                attempt = attempt_of(batch)
                name, ledger = attempt.identity, self._ledger_of(attempt.written)
            epoch = claim.lease.epoch
            self._write_once(self._for_shards(), ledger, (name,), frame, epoch, claim)
            claim.is_stored = True

    def stored(self, claim: ReadBatch) -> dict[str, Stored]:
        """Finds the members of a vector that are stored, and loads their failures.

        Returns:
            By shard, the id of the vector that has the batch, or why the shard is refused.

        Raises:
            InvalidArgument: if the table does not exist, or the sink has no `url`.
            PermissionDenied: if the role may not create the ledger, or may not write to it.
        """
        with connect(self._for_shards().resolve()) as connection, translated():
            target = self._resolve(connection)
            return MemberLedger(target[0], self._sink(target), claim).stored(connection)

    def forget(self, member: ReadBatch, vector: int) -> None:
        """Does nothing: the next batch of a shard replaces the record."""

    def _for_shards(self) -> DatabaseAddress:
        if self._address is None:
            raise InvalidArgument(
                "a sink for a queue over several databases needs the url of its own database"
            )
        return self._address

    @staticmethod
    def _ledger_of(written: Written) -> Callable[[str, str], Ledger]:
        return lambda schema, sink: Ledger(
            schema, sink, partial(written.add, sink, hint=_ANOTHER_NAME)
        )

    def _staged(self, batch: SparkBatch, frame: DataFrame) -> Callable[[Connection], None]:
        """Stages the rows in the queue's own database; returns what merges them."""
        attempt, claim = attempt_of(batch), batch.claim
        with connect(attempt.url) as connection:
            target = self._resolve(connection)
        with attempt.written.adding(self._sink(target), hint=_ANOTHER_NAME):
            with connect(attempt.url) as connection:
                stage = self._stage(connection, attempt.identity, frame, target, claim.lease.epoch)
            with stage.dropped_on_failure(attempt.url):
                stage.fill(attempt.address, frame)
                stage.check(attempt.url)
                claim.run_checks()

        def merge(connection: Connection) -> None:
            # A savepoint: rolling it back releases the locks on the stage, so that it can be
            # dropped. After a conflict with another transaction, the ack can be repeated.
            with (
                stage.dropped_on_failure(attempt.url, kept_on=(TransactionOutdated,)),
                connection.transaction(),
            ):
                stage.merge(connection)

        return merge

    def foreach_batch(self, *, query: str | None = None) -> Callable[[DataFrame, int], None]:
        """Returns a function for `writeStream.foreachBatch`: each micro-batch counts exactly once.

        The guarantee is the same as for another database, with the checkpoint instead of the ack.

        Args:
            query: as for `once_per_batch`.

        Raises:
            InvalidArgument: if the sink has no `url`.
        """
        address = self._address
        if address is None:
            raise InvalidArgument("a sink for streams needs the url of its database")

        def write(frame: DataFrame, batch_id: int) -> None:
            batch = micro_batch(frame, batch_id, query)
            ledger_of = self._ledger_of(written_of(frame, batch[0]))
            self._write_once(address, ledger_of, batch, frame, 0)

        return write

    def _write_once(
        self,
        address: DatabaseAddress,
        ledger_of: Callable[[str, str], Ledger | MemberLedger],
        batch: tuple[str, ...],
        frame: DataFrame,
        epoch: int,
        claim: ReadBatch | None = None,
    ) -> None:
        url = address.resolve()
        with connect(url) as connection:
            target = self._resolve(connection)
            ledger = ledger_of(target[0], self._sink(target))
            if ledger.has(connection, batch):
                return
            stage = self._stage(connection, batch[0], frame, target, epoch)
        try:
            with stage.dropped_on_failure(url):
                stage.fill(address, frame)
                stage.check(url)
                if claim is not None:
                    claim.run_checks()
                    if claim.is_final:
                        claim.renew()
                with connect(url) as connection, translated(), connection.transaction():
                    ledger.record(connection, batch)
                    stage.merge(connection)
        except AlreadyApplied:  # An earlier attempt, assumed dead, has merged it.
            with connect(url) as connection:
                ledger.has(connection, batch)

    def _sink(self, target: tuple[str, str]) -> str:
        """The name under which a batch is written once."""
        return ".".join(target) + (f" as {self._name}" if self._name else "")

    def _stage(
        self,
        connection: Connection,
        batch: str,
        frame: DataFrame,
        target: tuple[str, str],
        epoch: int,
    ) -> Stage:
        missing = [column for column in self._key if column not in frame.columns]
        if missing:
            raise InvalidArgument(
                f"the DataFrame has no column {', '.join(missing)}",
                f"Rows for {self.table} need the key; there is: {', '.join(frame.columns)}.",
            )
        table = sql.Identifier(*target)
        merge = Merge(table, self._mode, self._key, fit(connection, table, frame.schema))
        stage = Stage(self._stage_schema or target[0], merge, batch, epoch)
        stage.create(connection)
        return stage

    def _resolve(self, connection: Connection) -> tuple[str, str]:
        """Returns schema and name of the table."""
        ((schema,),) = connection.execute(
            "select quote_ident((parse_ident(%s))[1])", (self.table,)
        ).fetchall()
        with needing(connection, "usage", f"schema {schema}", f"where {self.table} is"):
            row = connection.execute(
                "select n.nspname::text, c.relname::text from pg_class c"
                " join pg_namespace n on n.oid = c.relnamespace where c.oid = to_regclass(%s)",
                (self.table,),
            ).fetchone()
        if row is None:
            raise InvalidArgument(f"there is no table {self.table}", "Create the table first.")
        return row[0], row[1]
