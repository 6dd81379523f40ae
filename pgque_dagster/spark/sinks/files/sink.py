"""Stores batches as Parquet files. Each attempt at a batch replaces the files of earlier ones."""

from collections.abc import Collection
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ....client import InvalidArgument
from ...batch import SparkBatch, attempt_of
from ...cluster.lost_lease import cancelled_without_lease
from ..modes import BATCH_ID, check_directory
from ..publication import BatchIdentity
from .file_reader import listed_by_driver
from .folders import Folders
from .incarnation import check_incarnation
from .storage import Storage, written_for

# Spark takes a path with these characters for a pattern.
_PATTERN = frozenset("[]{}*?\\")


class ParquetSink:
    """A table of Parquet files in a directory.

    If the batch is acked after `write` returned:

    - Readers see the rows of one attempt at a batch, or none.
    - A driver or executor is killed **while writing**: readers see the batch as it was before. The
      next attempt removes what the killed one left.
    - Killed **after writing, before the ack**: the next attempt replaces the rows.
    - Killed **after the ack**: the batch is stored, and is not delivered again.
    - **Stopped for any time, and continued** after another attempt took the batch over: `write` or
      the ack fails, and the rows of the other attempt stay unchanged. `publication.py` says why.

    Spark's own writer stores the rows of a batch in
    `batch_id=<id>/publication-<n>/epoch-<epoch>.<attempt>/`, see `folders.py`. Readers of the
    directory see one table, with the column `batch_id`. While a batch that was not acked is
    replaced, they do not see it for a moment. In an object store, use `DeltaSink` or `IcebergSink`.

    The rows of an attempt that was not acked remain if no later attempt stores the batch: if the
    batch becomes dead letters, if its consumer is unregistered, or if a subconsumer takes it over
    by a dead interval, under a new batch id.

    A location belongs to one incarnation. Another installation, a copy of the database, a restored
    database and a promoted standby number their batches independently, so their writes are refused.

    Args:
        location: a directory that driver and executors share, on a file system as
            docs/writing.md demands it.

    Raises:
        InvalidArgument: if it is the URL of something else than a directory.
    """

    def __init__(self, location: str | Path) -> None:
        check_directory(str(location))
        self._storage = Storage.of(location)
        self._location = self._storage.location

    def write(self, batch: SparkBatch, frame: DataFrame) -> str:
        """Stores a batch, and replaces what earlier attempts at it stored.

        Args:
            batch: the batch. Each claim may write it once.
            frame: its rows, without a column `batch_id` in any case.

        Returns:
            The directory of the rows.

        Raises:
            InvalidArgument: if the location has batches of another or an unknown incarnation, or is
                inside another table, if this claim wrote the batch before, if a directory's table
                has other columns, or if a column has a directory's name, or cannot be held.
            LeaseLost: if another owner took the batch over; this attempt stores nothing.
            BatchNotOpen: if the batch was acked meanwhile.
            StorageFailed: if the files cannot be read or written. The batch stays open.
        """
        self._check(frame)
        claim = batch.claim
        attempt_of(batch).written.add(self._location)
        with (
            written_for(f"Parquet table {self._location}", BatchIdentity.of(claim)),
            self._storage.errors("cannot be written"),
            cancelled_without_lease(batch.spark, claim),
        ):
            store = Folders(Path(self._location))
            check_incarnation(self._location, store, claim.session)
            return store.publish(claim, frame)

    def read(
        self,
        spark: SparkSession,
        *,
        since: int | None = None,
        batches: Collection[int] | None = None,
    ) -> DataFrame:
        """Returns batches as one table, with the column `batch_id`.

        Args:
            spark: the session.
            since: only batches with this id or a higher one.
            batches: only batches with these ids.
        """
        with listed_by_driver(spark):
            table = spark.read.parquet(self._location)
        if since is not None:
            table = table.where(f.col("batch_id") >= since)
        if batches is not None:
            table = table.where(f.col("batch_id").isin(list(batches)))
        return table

    def _check(self, frame: DataFrame) -> None:
        """Refuses a location or columns that readers would not see as they are."""
        if _PATTERN.intersection(self._location):
            raise InvalidArgument(
                f"Spark takes the path {self._location} for a pattern",
                "Write to a directory without [ ] { } * ? \\ in its name.",
            )
        if "=" in Path(self._location).name:
            raise InvalidArgument(
                f"readers of the directory around {self._location} take its name for a column",
                "Write to a directory without = in its name.",
            )
        hidden = [name for name in frame.columns if name.lower() == BATCH_ID]
        if hidden:
            raise InvalidArgument(
                f"the column {hidden[0]} would be hidden by the directories {BATCH_ID}=…",
                "Give it another name: withColumnRenamed().",
            )
