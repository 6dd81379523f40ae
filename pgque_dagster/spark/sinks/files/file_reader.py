"""Reads the Parquet files of a table.

Spark itself reads files in a directory. Files of an object store are read by Arrow in Spark's
tasks, without a jar.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from ...reading.arrow import nullable
from ...reading.in_tasks import read_in_tasks
from .storage import Storage

if TYPE_CHECKING:
    from pyroaring import BitMap64

# As Spark packs files: the bytes per task, and the cost of opening a file in bytes. Spark knows the
# number of cores; here, all but few files are split among some tasks.
_TASK_BYTES = 128 * 2**20
_LEAST_BYTES = 16 * 2**20
_TASKS = 8
_OPEN_BYTES = 4 * 2**20
# By default, Spark lists more than 32 paths in a job with a task for each path, which takes longer
# than reading the small files of many batches. The driver lists thousands in a second.
_LISTING = {
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "64",
}
# Sessions may be configured to skip missing and damaged files, and the rows in them.
_ALL_FILES = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
_VIEWED = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
File = TypeVar("File", bound="ListedFile")
Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)
# Guards the session's settings while they are changed.
_LOCK = Lock()


class Deleted(Protocol):
    """Which rows of a file are deleted. It is sent to tasks, which read the positions."""

    def positions(self, storage: Storage) -> "BitMap64":
        """Returns the positions of the deleted rows."""


@dataclass(frozen=True)
class ListedFile:
    """A file to read.

    Attributes:
        path: relative to the location.
        size: in bytes.
        deleted: which of its rows are deleted; None if none is.
    """

    path: str
    size: int
    deleted: Deleted | None = None


def read_table_files(
    spark: SparkSession, storage: Storage, files: Sequence[ListedFile], schema: StructType
) -> DataFrame:
    """Returns the rows of a table's files; Spark reads them itself if they are in a directory.

    A file that lacks a column has null there. Files with deleted rows are read by Arrow. Executors
    need the same access as the driver.
    """
    if files and not storage.is_url and not any(file.deleted for file in files):
        # Spark would treat these characters as a pattern.
        paths = [re.sub(r"([][{}*?\\])", r"\\\1", f"{storage.location}/{x.path}") for x in files]
        with listed_by_driver(spark):
            return spark.read.options(**_ALL_FILES).schema(schema).parquet(*paths)
    # Older files may lack columns.
    schema = nullable(schema)
    nothing = spark.createDataFrame([], schema)
    if not files:
        return nothing
    # Its plan has no rows, so that Spark runs no job.
    target: pa.Schema = nothing.limit(0).toArrow().schema

    def read(part: list[ListedFile]) -> Iterator[pa.RecordBatch]:
        for file in part:
            with storage.errors("cannot be read"):
                for rows in live_rows(storage, file):
                    yield from fitted(rows, target)

    return read_in_tasks(spark, packed(files), read, schema)


def opened(storage: Storage, file: ListedFile) -> pq.ParquetFile:
    """Opens a file so that the columns of a row group are one request, or a few."""
    source = storage.source(file.path)
    # Nanoseconds, the default for these old timestamps, only cover 1677 to 2262.
    return pq.ParquetFile(source, pre_buffer=True, coerce_int96_timestamp_unit="us")


def deleted_positions(storage: Storage, file: ListedFile) -> np.ndarray:
    """Returns the sorted positions of the deleted rows of a file."""
    found = file.deleted.positions(storage).to_array() if file.deleted else b""
    return np.frombuffer(found, dtype=np.uint64).astype(np.int64)


def live_rows(storage: Storage, file: ListedFile) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a file that are not deleted, in their order."""
    deleted, first, source = deleted_positions(storage, file), 0, opened(storage, file)
    # One group at a time, because Arrow keeps all that it is to read.
    groups = (source.iter_batches(row_groups=[x]) for x in range(source.num_row_groups))
    for rows in map(plain, chain.from_iterable(groups)):
        low, high = np.searchsorted(deleted, (first, first + rows.num_rows))
        live = np.ones(rows.num_rows, dtype=bool)
        live[deleted[low:high] - first] = False
        first += rows.num_rows
        yield rows if live.all() else rows.filter(pa.array(live))


def plain(rows: Rows) -> Rows:
    """Returns rows without views, which Delta's library writes and Arrow cannot select from."""
    for place, column in enumerate(rows.schema):
        if found := _VIEWED.get(column.type):
            rows = rows.set_column(place, column.name, rows.column(place).cast(found))
    return rows


@contextmanager
def listed_by_driver(spark: SparkSession) -> Iterator[None]:
    """Makes Spark's driver list the files of a DataFrame created in the block, without a job."""
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


def packed(files: Sequence[File]) -> list[list[File]]:
    """Returns which files each task reads."""
    parts: list[list[File]] = []
    share = sum(file.size + _OPEN_BYTES for file in files) // _TASKS
    room = 0
    for file in files:
        cost = file.size + _OPEN_BYTES
        if not parts or cost > room:
            parts.append([])
            room = min(_TASK_BYTES, max(_LEAST_BYTES, share))
        parts[-1].append(file)
        room -= cost
    return parts


def fitted(rows: pa.RecordBatch, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yields the rows with other columns, which are null if the rows lack them."""
    there = rows.schema.names
    columns = [
        rows.column(x.name).cast(x.type) if x.name in there else pa.nulls(rows.num_rows, x.type)
        for x in target
    ]
    yield from pa.Table.from_arrays(columns, schema=target).to_batches()
