"""The kinds of tables that batches are stored in, each read by a program that knows only the files.

A test that takes a kind of table as parameter covers them all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import duckdb
from pyspark.sql import DataFrame

from pgque_dagster.spark import ParquetSink, SparkBatch


@dataclass(frozen=True)
class StoredTable:
    """A kind of table.

    Args:
        write: stores a batch's rows at a location.
        rows: returns the columns `number` and `writer` of all rows at a location, sorted.
    """

    write: Callable[[SparkBatch, DataFrame, str], object]
    rows: Callable[[str], list[tuple[int, int]]]


def _parquet_rows(location: str) -> list[tuple[int, int]]:
    files = f"{location}/batch_id=*/publication-*/epoch-*/*.parquet"
    return _rows(f"from read_parquet('{files}')")


def _rows(source: str) -> list[Any]:
    return duckdb.sql(f"select number, writer {source} order by all").fetchall()


TABLES = {
    "parquet": StoredTable(
        lambda batch, frame, location: ParquetSink(location).write(batch, frame), _parquet_rows
    ),
}
