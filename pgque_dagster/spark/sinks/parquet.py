"""Batches as Parquet: a directory each, which another attempt at the batch replaces."""

import shutil
import uuid
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession


class ParquetSink:
    """A table of Parquet files, in `<location>/batch_id=<id>/`.

    What it guarantees, when the batch is acked after `write` returned:

    - A driver or executor killed **while writing**: readers see the batch as it was before. The
      next attempt writes it and removes what the killed one left.
    - Killed **after writing, before the ack**: the next attempt writes the same rows again, in the
      place of the first ones.
    - Killed **after the ack**: the batch is there, and is not delivered again.

    On a file system, readers see a batch whole or not at all: it is written aside and renamed into
    place. Between the two renames with which it replaces an earlier attempt's there is a moment
    without it; who is killed in it leaves the batch out until its next attempt, which is due. A
    store that has a URL (`s3a://…`, `hdfs://…`) is left to Spark, which removes the directory and
    writes it
    anew: there, readers may meet a part of a batch that is being written. `_SUCCESS` in a directory
    says that it is complete.

    Args:
        location: a directory that driver and executors share, or a URL that Spark can write to.
    """

    def __init__(self, location: str | Path) -> None:
        self._location = str(location)

    def write(self, batch_id: int, frame: DataFrame) -> str:
        """Stores a batch in the place of what an earlier attempt at it stored.

        Args:
            batch_id: the batch's id: the same for every attempt.
            frame: its rows, without a column `batch_id`.

        Returns:
            The batch's directory.
        """
        name = f"batch_id={int(batch_id)}"
        if "://" in self._location:
            url = f"{self._location.rstrip('/')}/{name}"
            frame.write.mode("overwrite").parquet(url)
            return url
        target = Path(self._location) / name
        # Readers pass over names with a dot in front.
        aside = target.parent / f".{name}.{uuid.uuid4().hex}"
        _remove_leftovers(target)
        try:
            frame.write.parquet(str(aside))
            _replace(target, aside)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return str(target)

    def read(self, spark: SparkSession) -> DataFrame:
        """Returns all batches as one table, with the column `batch_id`."""
        return spark.read.parquet(self._location)


def _replace(target: Path, new: Path) -> None:
    old = target.parent / f".old{new.name}"
    if target.exists():
        target.rename(old)
    new.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _remove_leftovers(target: Path) -> None:
    """Removes what attempts at the same batch left that were killed while they wrote."""
    for leftover in target.parent.glob(f".*{target.name}.*"):
        shutil.rmtree(leftover, ignore_errors=True)
