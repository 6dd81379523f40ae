"""Attempts at batches that `ParquetSink` stores, in a directory or on the S3 server."""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from pgque_dagster.client import Batch, Client
from pgque_dagster.spark import SparkBatch
from pgque_dagster.spark.sinks import ParquetSink
from tests.support.events import claim
from tests.support.s3 import S3

# How to access the locations that are URLs.
OPTIONS: dict[str, str] = {}


def sink(location: object) -> ParquetSink:
    options = OPTIONS if str(location).startswith("s3:") else None
    return ParquetSink(str(location), storage_options=options)


def numbers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count)


def attempt(client: Client, location: object, frame: DataFrame) -> Batch:
    """Claims the open batch, or the next one, and writes it."""
    claimed = claim(client)
    write(claimed, location, frame)
    return claimed


def write(claimed: Batch, location: object, frame: DataFrame) -> str:
    batch = SparkBatch(frame.sparkSession, claimed, claimed.session.url)
    return sink(location).write(batch, frame)


def stored(location: object, spark: SparkSession) -> list[tuple[int, int]]:
    table = sink(location).read(spark)
    return sorted((row.batch_id, row.id) for row in table.collect())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def files(location: str) -> list[str]:
    """The Parquet files that are there, whether they count or not."""
    if location.startswith("s3:"):
        s3 = S3(OPTIONS["aws_endpoint_url"])
        found = s3.names(location.removeprefix(s3.url("")))
    else:
        found = [str(path) for path in Path(location).rglob("*")]
    return [name for name in found if name.endswith(".parquet")]
