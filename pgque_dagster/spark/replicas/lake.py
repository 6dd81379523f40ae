"""A replica in the lake: each copy and each batch is one commit.

Each commit has a record of the consumer, the batch and the attempt. `sinks/publication.py` has the
proof that a stale attempt publishes nothing. Delta and Iceberg differ in how rows are committed.
"""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from pyspark.sql import DataFrame
from pyspark.sql import types as t

from ...client.replicas.deletes import HARD, HISTORY, SOFT
from ...client.replicas.outcome import Replicated
from ...client.replicas.shape import Altered
from ..batch import SparkBatch
from ..reading.in_tasks import as_types
from .commit import ReplicaOutput
from .compare import changes_between, count_differences, mark_differences
from .deletes import changed_rows, copied_rows, live_rows
from .location import check_columns
from .parts import CopyInParts
from .source import DELETED
from .stored import ReplicaState, StoredReplica, Table

# The maximum number of rows to repair; tasks and the driver hold their keys.
_REPAIRED = 1_000_000
# The same limit as for a batch.
_CORRECTED = 10_000_000


class LakeReplica(StoredReplica[Table]):
    """The table of the lake that is the replica of a table, and the operations that write it."""

    @abstractmethod
    def attempt(
        self, batch: SparkBatch, copied: str, columns: t.StructType
    ) -> AbstractContextManager[ReplicaOutput[Table]]:
        """Begins an attempt to publish something in the replica, which has these columns."""

    def alter_columns(self, batch: SparkBatch, altered: Altered, shape: str) -> bool:
        """Gives the replica the columns that its source has now; as `ReplicaOutput.alter` does."""
        with self.attempt(batch, "", self.columns()) as output:
            return output.alter(altered, shape)

    def overwrite(
        self,
        batch: SparkBatch,
        rows: DataFrame,
        copied: str,
        tick_id: int | None,
        foreign: int | None,
    ) -> tuple[int | None, int]:
        """Replaces the content of the replica with rows, and creates it if there is none.

        Args:
            batch: the batch whose run copied the rows.
            rows: the rows.
            copied: the snapshot in which they were read.
            tick_id: the tick of the snapshot, if rows are kept.
            foreign: the version with another program's rows that may be replaced.

        Returns:
            The version of the table, and how many rows it has.

        Raises:
            InvalidArgument: if there is another table, or one of another incarnation.
            ReplicaChanged: if it has another program's rows that may not be replaced.
            LeaseLost: if another owner took the batch over. The replica is unchanged.
            BatchNotOpen: if the batch was acked in between. The replica is unchanged.
            StorageFailed: if files cannot be written. The replica is unchanged.
        """
        old = None if self.deletes == HARD else self.newest_rows(batch.spark)
        columns = self.columns(old.schema if old is not None else ())
        # Kept columns may differ from new ones only in case.
        check_columns(self.source.name, columns.names)
        rows = copied_rows(rows, old, columns, self.source.key, self.deletes, tick_id)
        with self.attempt(batch, copied, columns) as output:
            output.foreign = foreign
            output.check_foreign(output.begin())
            output.write_copy(rows)
            output.publish()
            return output.version, output.rows

    def adopt(
        self, batch: SparkBatch, parts: CopyInParts, copied: str, foreign: int | None
    ) -> tuple[int | None, int] | None:
        """Replaces the content of the replica with the files of a copy in parts, as they are.

        The commit deletes the rows whose keys changed meanwhile, and adds the last rows of these,
        which `parts.rows` has found.

        Returns:
            As `overwrite`. None if the files lack something: rows are kept, the table has no
            deletion vectors, or other columns.

        Raises:
            As for `overwrite`.
        """
        columns = self.columns()
        with self.attempt(batch, copied, columns) as output:
            output.foreign, table = foreign, output.begin()
            output.check_foreign(table)
            is_empty = self.last_change(table)[0] is None
            keeps_rows = self.deletes == HISTORY or (self.deletes == SOFT and not is_empty)
            if keeps_rows or not output.can_adopt or parts.columns - {output.file_columns}:
                return None
            assert parts.changes is not None
            changes = t.StructType([*columns, t.StructField(DELETED, t.BooleanType())])
            with output.staged(as_types(parts.changes, changes)):
                output.adopt(parts.data_files())
                output.publish()
            return output.version, output.adopted_rows + output.rows

    def repair(
        self,
        batch: SparkBatch,
        state: ReplicaState,
        rows: DataFrame,
        copied: str,
        tick_id: int | None,
    ) -> tuple[int | None, int, int] | None:
        """Writes the copied rows that differ from the replica's, in one commit.

        Returns:
            The version of the table, how many rows its source has, and how many were written. None
            if all have to be written: the replica has no key or other columns, too many rows
            differ, or rows occur twice.

        Raises:
            As for `overwrite`. InvalidArgument also if an earlier attempt publishes in between.
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
            with self._staged(batch, changes, copied, tick_id, state) as output:
                output.publish()
            return output.version, count, differences
        finally:
            marked.unpersist()

    def merge(
        self, batch: SparkBatch, changes: DataFrame, copied: str
    ) -> tuple[int | None, int, int | None]:
        """Applies changes, which `net_changes` returned, in one commit.

        Returns:
            The version of the table, the number of changed rows, and by how many rows the table
            grew, if that is counted; the version is None if there was nothing to change.

        Raises:
            As for `overwrite`.
        """
        with self._staged(batch, changes, copied, batch.claim.lease.tick_id) as output:
            if not output.changes:
                return None, 0, None
            output.publish()
        return output.version, output.changes, output.grew_by

    def correct(
        self, batch: SparkBatch, changes: DataFrame, copied: str, tick_id: int, state: ReplicaState
    ) -> Replicated | None:
        """Gives the replica the rows that its source has in a later snapshot, in one commit.

        `changes` are all until the snapshot, as `net_changes` returns them.

        Returns:
            The outcome. None if the changes are too many.

        Raises:
            As for `overwrite`. InvalidArgument also if an earlier attempt publishes in between.
        """
        with self._staged(batch, changes, copied, tick_id, state) as output:
            count = output.changes or 0
            if count > _CORRECTED:
                return None
            output.publish()
        added = output.grew_by
        return Replicated(self.source, self.location, output.version, count, None, added=added)

    @contextmanager
    def _staged(
        self,
        batch: SparkBatch,
        changes: DataFrame,
        copied: str,
        tick_id: int | None,
        state: ReplicaState | None = None,
    ) -> Iterator[ReplicaOutput[Table]]:
        """Makes tasks prepare changes, which the block publishes."""
        own, old = self.columns(), None
        try:
            with self.attempt(batch, copied, own) as output:
                columns = output.begin_changes()
                output.repairs = state
                # A row that ends keeps its values of columns that the source no longer has.
                if self.deletes == HISTORY or len(columns) > len(own):
                    changes = changes.cache()  # They are read twice.
                    old = output.touched(changes)
                rows = changed_rows(changes, old, columns, self.source.key, self.deletes, tick_id)
                with output.staged(rows) as output.changes:
                    yield output
        finally:
            changes.unpersist()
