"""Stores batches as Parquet files. Each attempt at a batch replaces the files of earlier ones."""

import re
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from ...client import InvalidArgument
from ..batch import SparkBatch, attempt_of
from .folders import Folders
from .lineage import check_lineage
from .object_store import ObjectStore

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
# Spark takes a path with these characters for a pattern.
_PATTERN = frozenset("[]{}")


class ParquetSink:
    """A table of Parquet files, in `<location>/batch_id=<id>/publication-<n>/epoch-<epoch>.<id>/`.

    Each claim of a batch has a higher epoch than the claims before it, and each publication of a
    batch a higher number. Readers of the location see one table, with the column `batch_id`.

    On a file system, if the batch is acked after `write` returned:

    - Readers see the rows of one attempt at a batch, or none.
    - A driver or executor is killed **while writing**: readers see the batch as it was before. The
      next attempt removes what the killed one left.
    - Killed **after writing, before the ack**: the next attempt replaces the rows. For a moment in
      between, readers do not see the batch.
    - Killed **after the ack**: the batch is stored, and is not delivered again.
    - **Stopped for any time, and continued** after another attempt took the batch over: `write` or
      the ack fails, and the rows of the other attempt stay unchanged. `folders.py` says why.

    A location with a URL (`s3a://…`, `hdfs://…`) is written by Spark, with weaker guarantees, see
    `object_store.py`: readers other than `read` may see a part of a batch that is being written,
    and the rows that an attempt stored after it lost its lease, until the next attempt.

    In both cases, the rows of an attempt that was not acked remain if no later attempt stores the
    batch: if the batch becomes dead letters, if its consumer is unregistered, or if a subconsumer
    takes it over by a dead interval, under a new batch id.

    A location belongs to one lineage. Another installation, a copy of the database, a restored
    database and a promoted standby number their batches independently, so their writes are refused.

    Args:
        location: a directory that driver and executors share, on a file system that renames
            directories atomically, or a URL that Spark can write to.
    """

    def __init__(self, location: str | Path) -> None:
        self._location = str(location)

    def write(self, batch: SparkBatch, frame: DataFrame) -> str:
        """Stores a batch, and replaces what earlier attempts at it stored.

        Args:
            batch: the batch. Each claim may write it once.
            frame: its rows, without a column `batch_id` in any case.

        Returns:
            The directory of the rows.

        Raises:
            InvalidArgument: if the location has batches of another or an unknown lineage, or is
                inside another table, if this claim wrote the batch before, or if a column has the
                name of a directory.
            LeaseLost: if another owner took the batch over; this attempt stores nothing.
            BatchNotOpen: if the batch was acked meanwhile.
        """
        self._check(frame)
        attempt_of(batch).written.add(self._location)
        store = (
            ObjectStore(self._location, batch.spark)
            if self._is_url
            else Folders(Path(self._location))
        )
        check_lineage(self._location, store, batch.claim.session)
        return store.publish(batch.claim, frame)

    def read(self, spark: SparkSession) -> DataFrame:
        """Returns all batches as one table, with the column `batch_id`."""
        if self._is_url:
            return ObjectStore(self._location, spark).read()
        return spark.read.parquet(self._location)

    @property
    def _is_url(self) -> bool:
        return _URL.match(self._location) is not None

    def _check(self, frame: DataFrame) -> None:
        """Refuses a location or columns that readers would not see as they are."""
        if _PATTERN.intersection(self._location):
            raise InvalidArgument(
                f"Spark takes the path {self._location} for a pattern",
                "Write to a directory without [ ] { } in its name.",
            )
        # Directories named key=value are columns to readers, and hide those in the files.
        keys = {"batch_id", *re.findall(r"/([^/=]+)=[^/]*/?$", self._location)}
        hidden = [name for name in frame.columns if name.lower() in keys]
        if hidden:
            raise InvalidArgument(
                f"the column {hidden[0]} would be hidden by the directory {hidden[0].lower()}=…",
                "Give it another name: withColumnRenamed().",
            )
