"""A replica of a table in the lake: what a copy or a batch comes to is one commit.

Each commit has a record of the consumer, the batch and the attempt. `sinks/publication.py` has the
proof that a stale attempt publishes nothing. Delta and Iceberg differ in how rows are committed.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
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
)
from ...client.source_tables import SourceTable
from ..batch import SparkBatch
from ..sinks.tables import TableSink
from .compare import changes_between, count_differences, mark_differences
from .kept import changed_rows, copied_rows, live_rows, mark_columns
from .output import ReplicaOutput, ReplicaState
from .source import spark_columns
from .target import check_columns

Table = TypeVar("Table")

# So many rows at most are repaired, whose keys tasks and the driver hold.
_REPAIRED = 1_000_000
_SOURCE = "pgque.replica_of"
_KEPT_BY = "pgque.deletes"


class LakeReplica(ABC, Generic[Table]):
    """The table of the lake that is the replica of a table.

    Args:
        source: the table.
        sink: the table of the lake.
        owner: who replicates it.
        deletes: what becomes of rows that the source has no longer.

    Attributes:
        location: of the replica, for people.
    """

    location: str

    def __init__(self, source: SourceTable, sink: TableSink, owner: str, deletes: Deletes) -> None:
        self.source = source
        self.sink = sink
        self.deletes = deletes
        # The properties of its table, which say whose it is, and what it keeps.
        self.properties = {
            _SOURCE: f"{owner}/{source.name}",
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

    def repair(
        self,
        batch: SparkBatch,
        state: ReplicaState,
        rows: DataFrame,
        copied: str,
        tick_id: int | None,
    ) -> tuple[int | None, int, int] | None:
        """Writes those of the copied rows that differ from the replica's, by one commit.

        Args:
            batch: the batch in whose run the rows were copied.
            state: the newest version of the replica.
            rows: the rows.
            copied: the snapshot in which they were read.
            tick_id: the tick of the snapshot, if rows are kept.

        Returns:
            The version of the table, how many rows its source has, and how many were written. None
            if all are to be written: the replica has no key or other columns, too many rows that
            differ, or rows that are there twice.

        Raises:
            As for `overwrite`. InvalidArgument also if an earlier attempt publishes meanwhile.
        """
        old = self.read(batch.spark, state.version)
        if not self.source.key or not self.fits(old.schema):
            return None
        stored = live_rows(old, self.deletes)
        marked = mark_differences(rows, stored, self.source).cache()
        try:
            count, differences, repeated = count_differences(marked)
            if repeated or differences > _REPAIRED:
                return None
            changes = changes_between(marked, rows, stored, self.source)
            versions = old if self.deletes == HISTORY else None
            with self._staged(batch, changes, copied, versions, tick_id, state) as output:
                output.publish()
            return output.version, count, differences
        finally:
            marked.unpersist()

    def merge(
        self, batch: SparkBatch, changes: DataFrame, copied: str
    ) -> tuple[int | None, int, int | None]:
        """Applies changes by one commit.

        Args:
            batch: the batch.
            changes: what `net_changes` returns.
            copied: the snapshot of the last copy.

        Returns:
            The version of the table, the number of rows that were changed, and by how many the
            table grew, if somebody counts them; the version is None if there was nothing to change.

        Raises:
            As for `overwrite`.
        """
        old = self._rows(batch.spark) if self.deletes == HISTORY else None
        with self._staged(batch, changes, copied, old, batch.claim.lease.tick_id) as output:
            if not output.changes:
                return None, 0, None
            output.publish()
        return output.version, output.changes, output.grew_by

    @contextmanager
    def _staged(
        self,
        batch: SparkBatch,
        changes: DataFrame,
        copied: str,
        old: DataFrame | None,
        tick_id: int | None,
        state: ReplicaState | None = None,
    ) -> Iterator["ReplicaOutput[Table]"]:
        """Has tasks prepare changes for the block, in which they are published.

        Args:
            batch: the batch.
            changes: the changes.
            copied: the snapshot of the copy that the replica has with the changes.
            old: the rows of the replica, for `history`.
            tick_id: the tick of the changes.
            state: of the replica, if it holds another copy now.
        """
        columns = self.columns()
        # Of history, they are read twice.
        changes = changes.cache() if self.deletes == HISTORY else changes
        rows = changed_rows(changes, old, columns, self.source.key, self.deletes, tick_id)
        try:
            with self.attempt(batch, copied, columns) as output:
                output.begin()
                output.repairs = state
                with output.staged(rows) as output.changes:
                    yield output
        finally:
            changes.unpersist()

    def fits(self, stored: t.StructType) -> bool:
        """Whether the replica has the columns that it should have.

        Args:
            stored: those that it has.
        """
        return kinds(stored) == kinds(self.columns(() if self.deletes == HARD else stored))

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
        """Returns the newest version with what it has; None if no batch can follow it."""
        version, record = self.newest() or (None, None)
        if version is None or record is None:
            return None
        return ReplicaState(version, record["tick_id"], record["copied"], record["attempt"])

    def foreign_version(self) -> int | None:
        """Returns the newest version if rows in it are somebody else's; None if they are not."""
        version, record = self.newest() or (None, None)
        return version if record is None else None

    @abstractmethod
    def newest(self) -> tuple[int | None, dict[str, Any] | None] | None:
        """Returns the newest version, and the record of the last commit that changed rows.

        None if there is no table. There is no version before the first commit of rows, or if the
        columns are others, and no record if the last commit is somebody else's.

        Raises:
            InvalidArgument: as for `check`.
        """

    @abstractmethod
    def last_record(self, table: Table) -> dict[str, Any] | None:
        """Returns the record of the last commit that changed rows in a state of the table.

        None if rows may be somebody else's.
        """

    @abstractmethod
    def attempt(
        self, batch: SparkBatch, copied: str, columns: t.StructType
    ) -> AbstractContextManager["ReplicaOutput[Table]"]:
        """Begins an attempt to publish something in the replica, which has these columns."""

    @abstractmethod
    def read(self, spark: SparkSession, version: int | None) -> DataFrame:
        """Returns the rows of a version; None for the newest."""


def kinds(columns: t.StructType) -> dict[str, str]:
    """Returns the type of each column, as a text."""
    return {column.name: column.dataType.simpleString() for column in columns}
