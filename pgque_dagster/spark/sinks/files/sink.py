"""Stores batches as Parquet files. Each attempt at a batch replaces the files of earlier ones."""

import os
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ....client import InvalidArgument
from ...batch import SparkBatch
from ...cluster.lost_lease import cancelled_without_lease
from ..modes import BATCH_ID, check_directory
from .data_files import with_batch_id
from .file_reader import ListedFile, read_table_files
from .folders import publish_folder
from .record import (
    check_columns,
    check_layout,
    check_not_united,
    check_owner,
    of_shards,
    recorded_columns,
)
from .storage import Storage, written_for


class ParquetSink:
    """A table of Parquet files in a directory.

    If the batch is acked after `write` returned:

    - Readers see the rows of one attempt at a batch, or none.
    - If a driver or executor is killed **while writing**, readers see the batch as it was before.
      The next attempt removes what the killed one left.
    - If it is killed **after writing, before the ack**, the next attempt replaces the rows.
    - If it is killed **after the ack**, the batch is stored, and is not delivered again.
    - If it is **stopped for any time, and continues** after another attempt took the batch over,
      `write` or the ack fails, and the other attempt's rows stay. `publication.py` says why.

    All files below the directory are one table, with the column `batch_id` (`folders.py` has the
    layout). While a batch that was not acked is replaced, readers do not see it for a moment. The
    rows of an attempt that was not acked remain if no later attempt stores the batch: if it becomes
    dead letters, if its consumer is unregistered, or if a subconsumer takes it over under a new
    batch id after a dead interval. For object stores, for many small batches, which `maintain`
    compacts there, and for several databases, use `DeltaSink` or `IcebergSink`.

    A location belongs to one incarnation. Another installation, a copy of the database, a restored
    database and a promoted standby number their batches independently, so their writes are refused.

    Args:
        location: a directory that driver and executors share, on a file system as
            docs/writing.md demands it.

    Attributes:
        location: the directory.

    Raises:
        InvalidArgument: if it is a URL, but not of a directory.
    """

    def __init__(self, location: str | Path) -> None:
        check_directory(str(location))
        self._storage = Storage.of(location)
        self.location = self._storage.location

    @property
    def name(self) -> str:
        """The table's name for errors."""
        return f"Parquet table {self.location}"

    def write(self, batch: SparkBatch, frame: DataFrame) -> str:
        """Stores a batch, and replaces what earlier attempts at it stored.

        Args:
            batch: the batch. Each claim may write it once.
            frame: its rows, without a column `batch_id` in any case.

        Returns:
            The directory of the rows.

        Raises:
            InvalidArgument: if the batch has several databases; if the location has batches of
                another or an unknown incarnation, or is inside another table; if this claim wrote
                the batch before; or if the table has other columns, or cannot hold a column.
            LeaseLost: if another owner took the batch over; this attempt stores nothing.
            BatchNotOpen: if the batch was acked in between.
            StorageFailed: if the files cannot be read or written. The batch stays open.
        """
        with_batch_id(frame.schema)
        claim = batch.claim
        if claim.shards:
            raise of_shards(self.location)
        with (
            written_for(self.name, claim),
            self._storage.errors("cannot be written"),
            cancelled_without_lease(batch.spark, claim),
        ):
            table = Path(self.location)
            rows = frame.withColumn(BATCH_ID, f.lit(batch.batch_id).cast("bigint"))
            check = partial(check_columns, table, frame.schema, record=True)
            check_owner(table, claim.session)
            check_not_united(table, claim.batch_id)
            check_columns(table, frame.schema)
            return str(publish_folder(table, claim, rows, check))

    def read(self, spark: SparkSession, *, batches: Collection[int] | None = None) -> DataFrame:
        """Returns batches as one table, with the column `batch_id`.

        Args:
            spark: the session.
            batches: only batches with these ids.

        Raises:
            InvalidArgument: if the table does not exist.
        """
        directory = Path(self.location)
        check_layout(directory)
        columns = recorded_columns(directory)
        if columns is None:
            raise InvalidArgument(
                f"there is no table in {self.location}", "The first stored batch creates it."
            )
        files, schema = list(_files(directory)), with_batch_id(columns)
        if batches is None:
            return read_table_files(spark, self._storage, files, schema)
        names = {f"{kind}-{each}" for kind in ("batch", "window") for each in batches}
        # Tables made by versions up to 0.4.0 have many batches in such directories.
        of_many = ("united-", "gathering-", "vector-")
        files = [
            file
            for file in files
            if file.path.partition("/")[0] in names or file.path.startswith(of_many)
        ]
        table = read_table_files(spark, self._storage, files, schema)
        return table.where(f.col(BATCH_ID).isin(list(batches)))


def _files(table: Path) -> Iterator[ListedFile]:
    """Yields the files that readers of a directory find in it."""
    for path, folders, files in os.walk(table):
        folders[:] = [name for name in folders if not name.startswith(("_", "."))]
        within = os.path.relpath(path, table)
        # Only those of object stores need sizes.
        yield from (ListedFile(f"{within}/{x}", 0) for x in files if x.endswith(".parquet"))
