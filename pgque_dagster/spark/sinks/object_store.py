"""Publishes a batch's files in a store that cannot rename a directory in one step.

Each attempt writes into its own directory `batch_id=<id>/epoch-<n>/`, so no attempt replaces the
files of another one. Then the database renews its lease, and it empties the directories of lower
epochs. An attempt that lost the lease empties its own directory. Spark's readers and writers do
everything, so it works wherever Spark can write, also with Spark Connect. They cannot delete files,
so a directory is emptied by overwriting it with no rows.

The guarantees are weaker than in `folders.py`:

- Files are visible while they are being written.
- If an attempt that lost its lease is killed or stopped after it wrote and before it emptied its
  directory, its rows stay beside those of the acked attempt. `read` uses the highest epoch of each
  batch and does not see them; other readers do.
- If two lineages mark a new location at the same time, both are refused.
"""

import uuid
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from ...client import Batch, BatchNotOpen, InvalidArgument, LeaseLost
from .lineage import MARKER, check_epochs

_FILE = "_metadata.file_path"
_ATTEMPT = r"^(.*/batch_id=\d+)/epoch-(\d+)/[^/]*$"


class ObjectStore:
    """A location that Spark accesses by its URL."""

    def __init__(self, url: str, spark: SparkSession) -> None:
        self._url = url.rstrip("/")
        self._spark = spark

    def lineages(self) -> set[str]:
        """Returns the lineages of the marks in the location."""
        lineage = f.regexp_extract(_FILE, rf"/{MARKER}/([^/]+)/", 1)
        return self._collect(f"{self._url}/{MARKER}", lineage)

    def has_batches(self) -> bool:
        """Says whether the location contains batches."""
        is_batch = f.col(_FILE).contains("/batch_id=")
        return True in self._collect(self._url, is_batch)

    def mark(self, lineage: str, note: str) -> None:
        """Marks the location with a lineage, beside any mark that it has already."""
        line = self._spark.range(1, numPartitions=1).select(f.lit(note).alias("value"))
        line.write.mode("overwrite").text(f"{self._url}/{MARKER}/{lineage}/{uuid.uuid4().hex}")

    def publish(self, claim: Batch, frame: DataFrame) -> str:
        """Stores a batch, and empties the directories of lower epochs."""
        epoch = claim.lease.epoch
        folder = f"{self._url}/batch_id={claim.batch_id}"
        target = f"{folder}/epoch-{epoch}"
        try:
            frame.write.mode("error").parquet(target)
        except AnalysisException as error:
            if error.getCondition() == "PATH_ALREADY_EXISTS":
                check_epochs(claim, folder, [epoch])
            raise
        others = self._epochs(folder) - {epoch}
        try:
            claim.renew()
            check_epochs(claim, folder, others)
        except (LeaseLost, BatchNotOpen, InvalidArgument):
            self._empty(target, frame.schema)
            raise
        for earlier in others:
            self._empty(f"{folder}/epoch-{earlier}", frame.schema)
        return target

    def read(self) -> DataFrame:
        """Returns the rows of the highest epoch of each batch."""
        frame = self._spark.read.parquet(self._url)
        attempts = self._files(self._url).select(
            f.regexp_extract(_FILE, _ATTEMPT, 1).alias("batch"),
            f.regexp_extract(_FILE, _ATTEMPT, 2).try_cast("bigint").alias("epoch"),
            f.col(_FILE).alias("file"),
        )
        last = attempts.groupBy("batch").agg(f.max("epoch").alias("last"))
        earlier = attempts.join(last, "batch").where("epoch < last").select("file").collect()
        if not earlier:
            return frame
        return frame.where(~f.col(_FILE).isin([row.file for row in earlier]))

    def _epochs(self, folder: str) -> set[int]:
        epochs = self._collect(folder, f.regexp_extract(_FILE, _ATTEMPT, 2))
        return {int(epoch) for epoch in epochs if epoch}

    def _empty(self, directory: str, schema: StructType) -> None:
        nothing = self._spark.createDataFrame([], schema)
        nothing.write.mode("overwrite").parquet(directory)

    def _collect(self, directory: str, column: Column) -> set[Any]:
        """Returns the values of a column for the files below a directory, which may be missing."""
        try:
            rows = self._files(directory).select(column).distinct().collect()
        except AnalysisException as error:
            if error.getCondition() == "PATH_NOT_FOUND":
                return set()
            raise
        return {row[0] for row in rows}

    def _files(self, directory: str) -> DataFrame:
        """Lists files without reading their content."""
        reader = self._spark.read.format("binaryFile").option("recursiveFileLookup", "true")
        return reader.load(directory)
