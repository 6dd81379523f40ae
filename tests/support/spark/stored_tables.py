"""The kinds of tables that batches are stored in, each read by a program that knows only the files.

A test that takes a kind of table as parameter covers them all.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass

import duckdb
import pyarrow as pa
from deltalake import DeltaTable
from psycopg.conninfo import conninfo_to_dict
from pyiceberg.catalog import Catalog, load_catalog
from pyspark.sql import DataFrame
from sqlalchemy import URL

from pgque_dagster.spark import DeltaSink, IcebergSink, ParquetSink, SparkBatch
from pgque_dagster.spark.batch import attempt_of
from tests.support.servers.s3 import S3


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


def _write_parquet(batch: SparkBatch, frame: DataFrame, location: str) -> None:
    ParquetSink(location).write(batch, frame)


def _s3_options(location: str) -> dict[str, str]:
    """Given as options, because Spark's tasks may be older than the variables."""
    if not location.startswith("s3:"):
        return {}
    return {name: os.environ[name.upper()] for name in S3("").options}


def _parquet_rows(location: str) -> list[tuple[int, int]]:
    files = f"{location}/**/*.parquet"
    return duckdb.sql(f"select number, writer from read_parquet('{files}') order by all").fetchall()


def _write_delta(batch: SparkBatch, frame: DataFrame, location: str) -> None:
    DeltaSink(location, storage_options=_s3_options(location)).write(batch, frame)


def _delta_rows(location: str) -> list[tuple[int, int]]:
    options = _s3_options(location)
    if options:
        options["aws_allow_http"] = "true"
    stored = DeltaTable(location, storage_options=options).to_pyarrow_table()
    return _sorted(stored)


def _write_iceberg(batch: SparkBatch, frame: DataFrame, location: str) -> None:
    _URLS[location] = attempt_of(batch).url
    options = _s3_options(location)
    IcebergSink("a.table", warehouse=location, storage_options=options).write(batch, frame)


def _iceberg_rows(location: str) -> list[tuple[int, int]]:
    given = _s3_options(location)
    names = {
        "aws_access_key_id": "s3.access-key-id",
        "aws_secret_access_key": "s3.secret-access-key",
        "aws_region": "s3.region",
        "aws_endpoint_url": "s3.endpoint",
    }
    of_files = {names[name]: value for name, value in given.items()}
    catalog = iceberg_catalog(_URLS[location], **of_files)
    return _sorted(catalog.load_table("a.table").scan().to_arrow())


def iceberg_catalog(url: str, **properties: str) -> Catalog:
    """The catalog in a queue's database, as somebody opens it who has only pyiceberg."""
    parts = {name: str(value) for name, value in conninfo_to_dict(url).items()}
    parts["options"] = "-c search_path=iceberg_catalog"
    uri = URL.create("postgresql+psycopg", query=parts).render_as_string(hide_password=False)
    return load_catalog("pgque", **{"type": "sql", "uri": uri, **properties})


def _sorted(stored: pa.Table) -> list[tuple[int, int]]:
    return duckdb.sql("select number, writer from stored order by all").fetchall()


# The databases with the catalogs of locations that this process wrote to.
_URLS: dict[str, str] = {}

TABLES = {
    "parquet": StoredTable(_write_parquet, _parquet_rows),
    "delta": StoredTable(_write_delta, _delta_rows),
    "delta on s3": StoredTable(_write_delta, _delta_rows, is_on_s3=True),
    "iceberg": StoredTable(_write_iceberg, _iceberg_rows),
    "iceberg on s3": StoredTable(_write_iceberg, _iceberg_rows, is_on_s3=True),
}
