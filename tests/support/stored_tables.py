"""The kinds of tables that batches are stored in, each read by a program that knows only the files.

A test that takes a kind of table as parameter covers them all.
"""

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
from pyspark.sql import DataFrame

from pgque_dagster.spark import ParquetSink, SparkBatch
from tests.support.s3 import S3


@dataclass(frozen=True)
class StoredTable:
    """A kind of table.

    Args:
        write: stores a batch's rows at a location.
        rows: returns the columns `number` and `writer` of all rows at a location, sorted.
        is_on_s3: whether the location is on the S3 server that the environment names.
    """

    write: Callable[[SparkBatch, DataFrame, str], object]
    rows: Callable[[str], list[tuple[int, int]]]
    is_on_s3: bool = False


def rows_by_manifests(s3: S3, folder: str, columns: str = "*") -> list[Any]:
    """The rows of a table of Parquet files, as somebody reads them who has only the manifests."""
    newest: dict[int, int] = {}
    for name in s3.names(f"{folder}/_pgque/batches/"):
        batch, number = map(int, re.findall(r"/(\d+)/(\d+)\.json$", name)[0])
        newest[batch] = max(number, newest.get(batch, 0))
    files = []
    for batch, number in newest.items():
        name = f"{folder}/_pgque/batches/{batch}/{number}.json"
        manifest = json.loads(s3.client.get_object(Bucket="lake", Key=name)["Body"].read())
        files += manifest["files"]
    stored = pa.concat_tables([s3.read_parquet(f"{folder}/{file['path']}") for file in files])
    assert stored.num_rows == sum(file["rows"] for file in files)
    return duckdb.sql(f"select {columns} from stored order by all").fetchall()


def _write_parquet(batch: SparkBatch, frame: DataFrame, location: str) -> None:
    ParquetSink(location, storage_options=_s3_options(location)).write(batch, frame)


def _s3_options(location: str) -> dict[str, str]:
    """Given as options, because Spark's tasks may be older than the variables."""
    if not location.startswith("s3:"):
        return {}
    return {name: os.environ[name.upper()] for name in S3("").options}


def _parquet_rows(location: str) -> list[tuple[int, int]]:
    files = f"{location}/batch_id=*/publication-*/epoch-*/*.parquet"
    return duckdb.sql(f"select number, writer from read_parquet('{files}') order by all").fetchall()


def _parquet_rows_on_s3(location: str) -> list[tuple[int, int]]:
    s3 = S3(os.environ["AWS_ENDPOINT_URL"])
    return rows_by_manifests(s3, location.removeprefix(s3.url("")), "number, writer")


TABLES = {
    "parquet": StoredTable(_write_parquet, _parquet_rows),
    "parquet on s3": StoredTable(_write_parquet, _parquet_rows_on_s3, is_on_s3=True),
}
