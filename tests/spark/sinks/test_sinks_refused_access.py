"""A store that does not take a batch: a clear error, and the next attempt succeeds."""

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster.client import Client
from pgque_dagster.spark import DeltaSink, IcebergSink, ParquetSink, SparkBatch
from pgque_dagster.spark.sinks.files.storage import StorageFailed
from tests.support.servers.machines import needs_a_small_disk, small_disk
from tests.support.servers.s3 import S3
from tests.support.spark.attempts import again, next_batch

SCHEMA = "number bigint, name string"
TABLE = "sales.revenue"

Write = Callable[[SparkBatch, DataFrame], object]


def parquet(location: str) -> Write:
    return ParquetSink(location).write


def delta(location: str, options: dict[str, str] | None = None) -> Write:
    return DeltaSink(location, storage_options=options).write


def iceberg(location: str, options: dict[str, str] | None = None) -> Write:
    return IcebergSink(TABLE, warehouse=location, storage_options=options).write


LAKES = [delta, iceberg]


@pytest.mark.parametrize("kind", LAKES)
@pytest.mark.parametrize(
    ("login", "is_new"),
    [
        pytest.param("a wrong secret", True, marks=pytest.mark.slow),
        pytest.param("an unknown key", False, marks=pytest.mark.slow),
        pytest.param("may only read", True, marks=pytest.mark.slow),
        ("may only read", False),
    ],
)
def test_a_bucket_that_refuses_is_an_error_without_secrets(
    client: Client,
    spark: SparkSession,
    s3: S3,
    kind: Callable[..., Write],
    login: str,
    is_new: bool,
) -> None:
    location = s3.url(uuid.uuid4().hex)
    folder = location.removeprefix(s3.url(""))
    refused = {
        "a wrong secret": S3(s3.endpoint, "a-wrong-one-9xPqT4", s3.key),
        "an unknown key": S3(s3.endpoint, "of-nobody-5tRb", "AKIAUNKNOWNUNKNOWN00"),
        "may only read": s3.login("s3:Get*", "s3:List*"),
    }[login]
    if not is_new:
        store(next_batch(client, spark, [{"number": 0}]), kind(location, s3.options))
    before = s3.names(folder)
    batch = next_batch(client, spark, [{"number": 1}])

    with pytest.raises(StorageFailed) as told:
        kind(location, refused.options)(batch, batch.payload(SCHEMA))

    check_told(told.value, batch, location)
    assert "Check the credentials" in str(told.value)
    assert refused.secret not in str(told.value)
    assert s3.names(folder) == before
    store(again(client, spark, batch), kind(location, s3.options))


@pytest.mark.parametrize("kind", [pytest.param(parquet, marks=pytest.mark.slow), *LAKES])
@needs_a_small_disk
def test_a_disk_that_is_full_or_read_only_is_an_error_and_the_next_attempt_succeeds(
    client: Client, spark: SparkSession, tmp_path: Path, kind: Callable[..., Write]
) -> None:
    large = spark.range(400_000).selectExpr("id as number", "uuid() as name").coalesce(1)
    with small_disk(tmp_path / "disk") as disk:
        location = str(disk.folder / "table")
        store(next_batch(client, spark, [{"number": 0}]), kind(location))

        batch = next_batch(client, spark, [{"number": 1}])
        disk.remount("ro")
        with pytest.raises(StorageFailed, match=r"[Rr]ead-only file system") as told:
            kind(location)(batch, batch.payload(SCHEMA))
        disk.remount("rw")
        check_told(told.value, batch, location)
        store(again(client, spark, batch), kind(location))

        batch, before = (
            next_batch(client, spark, [{"number": 2}]),
            set(disk.folder.rglob("*.parquet")),
        )
        with pytest.raises(StorageFailed, match="No space left") as told:
            kind(location)(batch, large)
        check_told(told.value, batch, location)
        assert set(disk.folder.rglob("*.parquet")) == before
        disk.remount("size=64m")
        store(again(client, spark, batch), kind(location))

        assert numbers(client, spark, kind, location) == [0, 1, 2]


def store(batch: SparkBatch, write: Write) -> None:
    write(batch, batch.payload(SCHEMA))
    batch.claim.ack()


def check_told(error: Exception, batch: SparkBatch, location: str) -> None:
    """The error names table and batch in one line, and what to do."""
    told = str(error)
    assert location in told or f"Iceberg table {TABLE}" in told
    assert f"batch {batch.batch_id} of orders/revenue" in told
    assert "next attempt" in told
    assert "\n" not in told and len(told) < 1_000


def numbers(
    client: Client, spark: SparkSession, kind: Callable[..., Write], location: str
) -> list[int]:
    if kind is iceberg:
        table = IcebergSink(TABLE, warehouse=location).read(spark, client.url)
    else:
        table = (ParquetSink if kind is parquet else DeltaSink)(location).read(spark)
    return sorted(row.number for row in table.collect())
