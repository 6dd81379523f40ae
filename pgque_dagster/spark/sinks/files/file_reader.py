"""Reads the Parquet files of a table.

Spark reads those in a directory itself. Those of an object store are read by Arrow in Spark's
tasks, without a jar.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from ...reading.arrow import nullable
from ...reading.in_tasks import read_in_tasks
from .storage import Storage

# As Spark packs files: so many bytes for a task, and opening a file costs as much as so many.
_TASK_BYTES = 128 * 2**20
_OPEN_BYTES = 4 * 2**20
# By default, Spark lists more than 32 paths by a job with a task for each, which takes longer than
# reading the small files of many batches. The driver lists thousands in a second.
_LISTING = {
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "64",
}
# Of the session's settings, while they are changed.
_LOCK = Lock()


@dataclass(frozen=True)
class ListedFile:
    """A file to read: its path, relative to the location, and its size in bytes."""

    path: str
    size: int


def read_table_files(
    spark: SparkSession,
    storage: Storage,
    files: Sequence[ListedFile],
    schema: StructType,
    file_column: str | None = None,
) -> DataFrame:
    """Returns the rows of files of a table, which Spark reads itself if they are in a directory.

    A file that lacks a column has null there. Executors need the same access as the driver.

    Args:
        spark: the session.
        storage: where the files are.
        files: the files.
        schema: the columns of the table.
        file_column: a further column that gets the name of each row's file.
    """
    if files and not storage.is_url:
        # Spark takes these characters for a pattern.
        paths = [re.sub(r"([][{}*?\\])", r"\\\1", f"{storage.location}/{x.path}") for x in files]
        with listed_by_driver(spark):
            rows = spark.read.schema(schema).parquet(*paths)
        if file_column is None:
            return rows
        return rows.withColumn(file_column, rows.metadataColumn("_metadata")["file_name"])
    # Older files may lack columns.
    schema = nullable(schema)
    if file_column is not None:
        schema = schema.add(file_column, "string")
    nothing = spark.createDataFrame([], schema)
    if not files:
        return nothing
    # Without rows by its plan, so that Spark runs no job.
    target: pa.Schema = nothing.limit(0).toArrow().schema

    def read(part: list[ListedFile]) -> Iterator[pa.RecordBatch]:
        for file in part:
            with storage.errors("cannot be read"):
                # The columns of a row group are then one request, or a few.
                source = pq.ParquetFile(storage.source(file.path), pre_buffer=True)
                for rows in source.iter_batches():
                    if file_column is not None:
                        name = pa.scalar(file.path.rpartition("/")[2])
                        rows = rows.append_column(file_column, pa.repeat(name, rows.num_rows))
                    yield from fitted(rows, target)

    return read_in_tasks(spark, _packed(files), read, schema)


@contextmanager
def listed_by_driver(spark: SparkSession) -> Iterator[None]:
    """Lets Spark's driver list the files of a DataFrame that the block creates, without a job."""
    with _LOCK:
        before = {key: spark.conf.get(key, None) for key in _LISTING}
        for key, value in _LISTING.items():
            spark.conf.set(key, value)
        try:
            yield
        finally:
            for key, given in before.items():
                if given is None:
                    spark.conf.unset(key)
                else:
                    spark.conf.set(key, given)


def _packed(files: Sequence[ListedFile]) -> list[list[ListedFile]]:
    parts: list[list[ListedFile]] = []
    room = 0
    for file in files:
        cost = file.size + _OPEN_BYTES
        if not parts or cost > room:
            parts.append([])
            room = _TASK_BYTES
        parts[-1].append(file)
        room -= cost
    return parts


def fitted(rows: pa.RecordBatch, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yields the rows with other columns, whose values are null if the rows lack them."""
    there = rows.schema.names
    columns = [
        rows.column(x.name).cast(x.type) if x.name in there else pa.nulls(rows.num_rows, x.type)
        for x in target
    ]
    yield from pa.Table.from_arrays(columns, schema=target).to_batches()
