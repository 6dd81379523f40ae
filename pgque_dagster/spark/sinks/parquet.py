"""Batches as Parquet: of each, what its last attempt stored."""

import re
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from ...client import InvalidArgument
from ..batch import SparkBatch
from .folders import Folders
from .lineage import check_lineage
from .object_store import ObjectStore

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
# Spark would take these in a path for a pattern.
_PATTERN = frozenset("[]{}")


class ParquetSink:
    """A table of Parquet files, in `<location>/batch_id=<id>/epoch-<n>/`.

    Each claim of a batch has an epoch, which is higher than those of the claims before it. Readers
    of the location see one table, with the column `batch_id`.

    What it guarantees on a file system, when the batch is acked after `write` returned:

    - Readers see a batch whole or not at all.
    - A driver or executor killed **while writing**: readers see the batch as it was before. The
      next attempt removes what the killed one left.
    - Killed **after writing, before the ack**: the next attempt puts its rows in the place of the
      first ones. Between the two there is a moment without the batch.
    - Killed **after the ack**: the batch is there, and is not delivered again.
    - **Stopped, for any time, anywhere, and continued** after another attempt took the batch over:
      `write` fails, or the ack does. What the other attempt stored stays as it is. `folders.py`
      says why.

    A store that has a URL (`s3a://…`, `hdfs://…`) is left to Spark, and `object_store.py` says what
    is weaker there: a reader other than `read` may meet a part of a batch that is being written,
    and, until the next attempt at the batch, rows that an attempt stored after it lost its lease.

    What neither can take back is what an attempt stored of a batch that no later attempt stores:
    one that is given up, one whose consumer is unregistered, or one that a subconsumer took over
    from another by a dead interval, under a new batch id.

    One location belongs to one lineage: an installation of its own, a copy of the database or a
    restored one counts its batches on its own, and is refused.

    Args:
        location: a directory that driver and executors share, on a file system that renames
            directories atomically, or a URL that Spark can write to.
    """

    def __init__(self, location: str | Path) -> None:
        self._location = str(location)

    def write(self, batch: SparkBatch, frame: DataFrame) -> str:
        """Stores a batch in the place of what earlier attempts at it stored.

        Args:
            batch: the batch, which may be written once under each claim.
            frame: its rows, without a column `batch_id`, whatever its case.

        Returns:
            The directory of the rows.

        Raises:
            InvalidArgument: if the location holds batches of another lineage, or of an unknown one,
                or lies in another table's, or this claim wrote the batch before; or if a column
                has the name of a directory.
            LeaseLost: if another owner took the batch over; nothing of this attempt counts.
            BatchNotOpen: if the batch was acked meanwhile.
        """
        self._check(frame)
        batch.written.add(self._location)
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
        """Refuses what readers would not see as it was written."""
        if _PATTERN.intersection(self._location):
            raise InvalidArgument(
                f"Spark takes {self._location} for a pattern",
                "Write to a directory without [ ] { } in its name.",
            )
        # Directories named key=value are columns to readers, and come before those in the files.
        keys = {"batch_id", *re.findall(r"/([^/=]+)=[^/]*/?$", self._location)}
        hidden = [name for name in frame.columns if name.lower() in keys]
        if hidden:
            raise InvalidArgument(
                f"the column {hidden[0]} would be hidden by the directory {hidden[0].lower()}=…",
                "Give it another name: withColumnRenamed().",
            )
