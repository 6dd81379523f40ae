"""Copies a large table in parts. Each attempt continues with the parts that earlier ones left.

Parallel tasks read the parts into files: `client/replicas/parts.py` describes the rest.
"""

from collections.abc import Sequence
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from ...client.batch import Batch
from ...client.plans import of_table
from ...client.replicas.capture import COPY
from ...client.replicas.deletes import HARD
from ...client.replicas.events import TRUNCATE, read_as
from ...client.replicas.parts import PartedCopy, from_clauses, seen_after, united
from ...client.replicas.source import SourceTable
from ...client.replicas.standing import Log
from ..batch import SparkBatch, attempt_of
from ..options import DEFAULT_SLICES
from ..reading import arrow
from ..sinks.files.copy_files import CopyFiles
from ..sinks.files.file_reader import read_table_files
from .commit import ReplicaOutput
from .events import CHANGE_COLUMNS
from .rows import rows_at
from .source import DELETED, late_changes, spark_columns

# Up to this many changed keys, each task holds all of them, and copied rows need no shuffle.
_KEYS = 1_000_000


class CopyInParts(PartedCopy):
    """A copy in parts whose rows are in files. Its other arguments are those of `PartedCopy`.

    Args:
        spark_batch: the batch, for tasks.
        output: an attempt at the replica, to write files. It gets the version with another
            program's rows that the replica had when the copy began, and that it may replace.

    Attributes:
        changes: what `rows` found to have changed since the copy began.
        check_files: raises `StorageFailed` if files are gone; the next attempt reads them again.
        data_files: returns its files, as a commit needs them.

    Raises:
        LeaseLost: if another owner took the batch over.
        StorageFailed: if files cannot be read or written.
    """

    _kept: CopyFiles
    changes: DataFrame | None = None

    def __init__(
        self,
        spark_batch: SparkBatch,
        batch: Batch,
        output: ReplicaOutput[Any],
        source: SourceTable,
        reason: str,
        noted_tick: int | None,
        log: Log,
    ) -> None:
        self._batch, self._output = spark_batch, output
        self._address = attempt_of(spark_batch).address
        self._columns = spark_columns(source)
        copies, new = CopyFiles.all(output.storage), CopyFiles(output.storage)
        more = {"foreign": output.foreign}
        super().__init__(batch, source, copies, new, reason, noted_tick, log, more)
        output.foreign = self._kept.begun["foreign"]
        self.check_files, self.data_files = self._kept.check_files, self._kept.data_files

    @property
    def columns(self) -> set[str]:
        """A text that identifies the columns of its files."""
        return {each["columns"] for each in self._kept.groups}

    def read(self, deadline: float) -> bool:
        """Reads missing parts, as `PartedCopy.read` does.

        Raises:
            MalformedPayload: if the lake cannot hold a value.
        """
        is_complete = super().read(deadline)
        self._kept.unite()
        return is_complete

    def rows(self) -> tuple[int, str, DataFrame]:
        """Makes a tick. Returns it, its snapshot, and the rows that the table has at it.

        Raises:
            StaleReadPlan: if the events since the copy began no longer exist.
        """
        source = self._source
        tick_id, snapshot = self._tick()
        slices = of_table(self._plan(tick_id, slices=DEFAULT_SLICES).slices, source.name)
        slices = read_as(slices, source.readings)
        events = arrow.read_slices(self._batch.spark, self._address, slices, CHANGE_COLUMNS)
        events = events.where(~f.col("ev_type").isin(COPY, TRUNCATE))
        self.changes = changes = late_changes(events, source, HARD).persist(StorageLevel.DISK_ONLY)
        count = changes.count()
        self._log(f"{source.name}: {count} keys changed while it was copied")
        copied = read_table_files(
            self._batch.spark, self._kept.storage, self._kept.files, self._columns
        )
        names, key = [f.col(f"`{name}`") for name in copied.columns], list(source.key)
        keys = changes.select(key)
        keys = f.broadcast(keys) if count <= _KEYS else keys
        kept = copied.join(keys, key, "left_anti").select(*names)
        there = changes.where(f"not `{DELETED}`").select(*names)
        return tick_id, snapshot, kept.unionByName(there)

    def close(self) -> None:
        """Frees what `rows` keeps."""
        if self.changes is not None:
            self.changes.unpersist()

    def _read_parts(self, parts: Sequence[int]) -> None:
        spark, session, address = self._batch.spark, self._claim.session, self._address
        # More than there are cores, so that Spark asks a cluster for more of them.
        tasks = 2 * spark.sparkContext.defaultParallelism
        wanted = united([self._parts[number] for number in parts], tasks)
        ranges = from_clauses(session, self._source, wanted)
        check = seen_after(self._kept.begun["snapshot"])
        rows = rows_at(spark, session, address, self._source, None, ranges, check)
        self._output.write_copy(rows)
        self._confirm()
        self._kept.add(parts, self._output.files, self._output.file_columns)
