"""A replica of a table in the lake: what a copy or a batch comes to is one commit.

Each commit has a record of the consumer, the batch and the attempt. `sinks/publication.py` has the
proof that a stale attempt publishes nothing. Delta and Iceberg differ in how rows are committed.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from ...client.errors import InvalidArgument
from ...client.replicas.deletes import (
    HARD,
    HISTORY,
    Deletes,
    check_kept_by,
    kept_by,
    stored_key,
)
from ...client.source_tables import SourceTable
from ..batch import SparkBatch
from ..sinks.publication import WriteAttempt
from ..sinks.tables import TableOutput, TableSink
from .kept import changed_rows, copied_rows, live_rows, mark_columns
from .source import spark_columns
from .target import check_columns, check_path

Table = TypeVar("Table")

_SOURCE = "pgque.replica_of"
_KEPT_BY = "pgque.deletes"


@dataclass(frozen=True)
class ReplicaState:
    """A version of a replica, and which changes of its source it has.

    Attributes:
        version: the version of the Delta table, or the snapshot's id of Iceberg.
        tick_id: it has all changes up to this tick; those of later ticks only if `copied` has them.
        copied: the snapshot of its last copy, as `pg_snapshot` prints it.
    """

    version: int
    tick_id: int
    copied: str


class LakeReplica(ABC, Generic[Table]):
    """The table of the lake that is the replica of a table.

    Args:
        source: the table.
        sink: the table of the lake.
        queue: the queue of the source's changes.
        deletes: what becomes of rows that the source has no longer.

    Attributes:
        location: of the replica, for people.

    Raises:
        InvalidArgument: if a folder cannot have the table's name, or the lake one of its columns.
    """

    location: str

    def __init__(self, source: SourceTable, sink: TableSink, queue: str, deletes: Deletes) -> None:
        check_path(source.name, source.path)
        check_columns(source.name, [column.name for column in source.columns])
        self.source = source
        self.sink = sink
        self.deletes = deletes
        # The properties of its table, which say whose it is, and what it keeps.
        self.properties = {
            _SOURCE: f"{queue}/{source.name}",
            _KEPT_BY: kept_by(deletes, source.key),
        }

    def overwrite(
        self, batch: SparkBatch, rows: DataFrame, copied: str, tick_id: int | None
    ) -> tuple[int | None, int]:
        """Makes rows the content of the replica, which is created if there is none.

        Args:
            batch: the batch in whose run the rows were copied.
            rows: the rows.
            copied: the snapshot in which they were read.
            tick_id: the tick of the snapshot, if rows are kept.

        Returns:
            The version of the table, and how many rows it has.

        Raises:
            InvalidArgument: if another table is there, or one of another incarnation.
            LeaseLost: if another owner took the batch over. The replica is as it was.
            BatchNotOpen: if the batch was acked meanwhile. The replica is as it was.
            StorageFailed: if files cannot be written. The replica is as it was.
        """
        old = None if self.deletes == HARD else self._rows(batch.spark)
        columns = self.columns(old.schema if old is not None else ())
        # Kept ones may differ from new ones in case.
        check_columns(self.source.name, columns.names)
        rows = copied_rows(rows, old, columns, self.source.key, self.deletes, tick_id)
        with self.attempt(batch, copied, columns) as output:
            output.begin()
            output.write_copy(rows)
            output.publish()
            return output.version, output.rows

    def merge(self, batch: SparkBatch, changes: DataFrame, copied: str) -> tuple[int | None, int]:
        """Applies changes by one commit.

        Args:
            batch: the batch.
            changes: what `net_changes` returns.
            copied: the snapshot of the last copy.

        Returns:
            The version of the table, and the number of rows that were changed; the version is None
            if there was nothing to change.

        Raises:
            As for `overwrite`.
        """
        old = self._rows(batch.spark) if self.deletes == HISTORY else None
        columns, tick_id = self.columns(), batch.claim.lease.tick_id
        # Of history, they are read twice.
        changes = changes if old is None else changes.cache()
        rows = changed_rows(changes, old, columns, self.source.key, self.deletes, tick_id)
        try:
            with self.attempt(batch, copied, columns) as output:
                output.begin()
                with output.staged(rows) as count:
                    if not count:
                        return None, 0
                    output.publish()
                return output.version, count
        finally:
            changes.unpersist()

    def columns(self, stored: Iterable[t.StructField] = ()) -> t.StructType:
        """Returns the columns of the replica.

        Args:
            stored: the columns that it has. One that the source has no longer stays with the rows
                that are kept.
        """
        columns = [*spark_columns(self.source), *mark_columns(self.deletes)]
        names = {column.name for column in columns}
        return t.StructType([*columns, *(x for x in stored if x.name not in names)])

    def live_rows(self, spark: SparkSession, version: int) -> DataFrame:
        """Returns the rows that the source had at a version."""
        return live_rows(self.read(spark, version), self.deletes)

    def _rows(self, spark: SparkSession) -> DataFrame | None:
        """Returns the rows of the newest version; None if there is no table."""
        found = self.newest()
        return None if found is None else self.read(spark, found[0])

    def check(self, properties: Mapping[str, str]) -> None:
        """Refuses a table that is not this replica, or keeps rows in another way.

        Args:
            properties: those of the table.

        Raises:
            InvalidArgument: if it is none or does.
        """
        name, source, mine = self.sink.name, properties.get(_SOURCE), self.properties[_SOURCE]
        if source != mine:
            raise InvalidArgument(
                f"{name} is {f'the replica of {source}' if source else 'no replica'}, and not of "
                f"{mine}",
                "Replicate to another place, or move that table away.",
            )
        check_kept_by(name, properties.get(_KEPT_BY, HARD), self.properties[_KEPT_BY])

    def state(self) -> ReplicaState | None:
        """Returns the newest version with what it has.

        None if there is no table, or rows in it may be somebody else's.
        """
        version, record = self.newest() or (None, None)
        if version is None or record is None:
            return None
        return ReplicaState(version, record["tick_id"], record["copied"])

    @abstractmethod
    def newest(self) -> tuple[int | None, dict[str, Any] | None] | None:
        """Returns the newest version, and the record of the last commit that changed rows.

        None if there is no table. There is no version before the first commit of rows, and no
        record if rows may be somebody else's.

        Raises:
            InvalidArgument: as for `check`.
        """

    @abstractmethod
    def attempt(
        self, batch: SparkBatch, copied: str, columns: t.StructType
    ) -> AbstractContextManager["ReplicaOutput[Table]"]:
        """Begins an attempt to publish something in the replica, which has these columns."""

    @abstractmethod
    def read(self, spark: SparkSession, version: int | None) -> DataFrame:
        """Returns the rows of a version; None for the newest."""


class ReplicaOutput(TableOutput[Table]):
    """What an attempt publishes in a replica; beside the output of a format.

    Attributes:
        merges: whether it is changes to the rows of a copy, and not all rows.
    """

    merges = False

    def replicate(self, replica: LakeReplica[Table], batch: SparkBatch, copied: str) -> None:
        """Says what is replicated.

        Args:
            replica: the replica.
            batch: the batch.
            copied: the snapshot of the last copy.
        """
        name = self.batch
        self._replica, self._spark_batch = replica, batch
        self._row_key = stored_key(replica.deletes, replica.source.key)
        self._app_id = f"pgque/{name.incarnation}/{name.queue}/{name.consumer}"
        self._tick_id = batch.claim.lease.tick_id
        self._copied = copied

    @property
    def properties(self) -> dict[str, str]:
        """The properties of a new table."""
        return {**super().properties, **self._replica.properties}

    @property
    def record(self) -> dict[str, Any]:
        """What a commit records."""
        return {
            "app_id": self._app_id,
            "batch_id": self.batch.batch_id,
            "epoch": self.attempt.epoch,
            "attempt": self.attempt.id,
            "tick_id": self._tick_id,
            "copied": self._copied,
        }

    @abstractmethod
    def write_copy(self, rows: DataFrame) -> None:
        """Has tasks write the rows that are to be the whole content."""

    @abstractmethod
    def staged(self, changes: DataFrame) -> AbstractContextManager[int]:
        """Keeps changes for the block, in which they are published. Yields how many there are."""

    @abstractmethod
    def records(self, state: Table) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields the records of a table, the newest first, each with its version."""

    @abstractmethod
    def last_batch(self, state: Table) -> int | None:
        """Returns the last batch of this consumer that a state has."""

    def check(self, table: Table) -> list[str]:
        """Refuses a table that is not this replica, or is one of another incarnation."""
        self._replica.check(self._sink.properties_of(table))
        self.check_incarnation(table)
        return []

    def published(self, state: Table) -> WriteAttempt | None:
        """Returns the attempt at this batch whose commit is in a version of the table.

        Raises:
            InvalidArgument: if the table has a later batch, or changes would be merged into another
                copy than the one that they follow.
        """
        with self._sink.errors(self.batch):
            newest = next(self.records(state), (None, None))[1] if self.merges else None
            if newest is not None and newest["copied"] != self._copied:
                raise InvalidArgument(
                    f"a stale attempt has copied {self._sink.name} meanwhile",
                    "Run the batch again: it copies the table as it is then.",
                )
            stored = self.last_batch(state)
            if stored is None or stored < self.batch.batch_id:
                return None
            for version, record in self.records(state):
                if record["app_id"] == self._app_id:
                    if record["batch_id"] == self.batch.batch_id:
                        self.version = version
                        return WriteAttempt(record["epoch"], record["attempt"])
                    break
        raise InvalidArgument(
            f"{self._sink.name} has batch {stored} of {self.batch.queue}/{self.batch.consumer}, "
            f"which comes after {self.batch}",
            "The database went back in time: replicate to another place.",
        )
