"""Writes the rows of a table's files into other files, in Spark tasks.

Rows stay in their order and are not shuffled. A task has a row group in memory, not a file.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from ...cluster.executor_errors import clear_executor_errors
from ...reading.in_tasks import read_in_tasks
from .data_files import WRITTEN_FILE, DataFile, write_rows
from .file_reader import ListedFile, fitted, live_rows
from .storage import Storage


def rewrite_files(
    spark: SparkSession,
    storage: Storage,
    groups: Sequence[Sequence[ListedFile]],
    folder: str,
    schema: StructType,
    arrow: pa.Schema,
    change: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda rows: rows,
) -> list[DataFile | None]:
    """Makes tasks write the rows of each group of files, without deleted ones, into one file.

    Args:
        spark: the session.
        storage: the location of all files.
        groups: the groups.
        folder: a folder in it for these files alone.
        schema: the columns of the table.
        arrow: the same for Arrow. A file that lacks a column has null there.
        change: is applied to the rows first.

    Returns:
        The file of each group; None if it has no rows.

    Raises:
        StorageFailed: if files cannot be read or written.
    """

    def write(part: tuple[int, Sequence[ListedFile]]) -> Iterator[pa.RecordBatch]:
        number, files = part
        with storage.errors("cannot be read"):
            live = (change(rows) for file in files for rows in live_rows(storage, file))
            fitting = (each for rows in live for each in fitted(rows, arrow))
            for file in write_rows(fitting, storage, folder, schema, arrow=arrow):
                yield pa.RecordBatch.from_pylist([{**asdict(file), "number": number}])

    columns = f"{WRITTEN_FILE}, number bigint"
    with clear_executor_errors():
        rows = read_in_tasks(spark, list(enumerate(groups)), write, columns).collect()
    written = {row.number: DataFile.of(row) for row in rows}
    return [written.get(number) for number in range(len(groups))]
