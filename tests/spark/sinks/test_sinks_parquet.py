"""Batches as Parquet: each once, however often it is written."""

import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from pgque_dagster.client import Batch, BatchNotOpen, Client, InvalidArgument, LeaseLost
from pgque_dagster.spark import SparkBatch
from pgque_dagster.spark.sinks.object_store import ManifestOutput
from pgque_dagster.spark.sinks.publication import Attempt
from pgque_dagster.spark.sinks.storage import Storage, StorageFailed
from tests.support.events import claim, publish
from tests.support.parquet_tables import (
    OPTIONS,
    attempt,
    files,
    names,
    numbers,
    sink,
    stored,
    write,
)
from tests.support.s3 import BUCKET, S3
from tests.support.stored_tables import rows_by_manifests


def test_all_batches_are_one_table_with_the_column_batch_id(
    client: Client, location: str, spark: SparkSession
) -> None:
    publish(client, ["a"])
    first = attempt(client, location, numbers(spark, 2))
    first.ack()
    publish(client, ["b"])
    second = attempt(client, location, numbers(spark, 1)).batch_id

    assert stored(location, spark) == [(first.batch_id, 0), (first.batch_id, 1), (second, 0)]
    assert sink(location).read(spark).columns == ["id", "batch_id"]


def test_spark_and_arrow_read_a_directory_as_one_table(
    client: Client, tmp_path: Path, spark: SparkSession
) -> None:
    publish(client, ["a"])
    batch_id = attempt(client, tmp_path, numbers(spark, 2)).batch_id

    arrow = ds.dataset(tmp_path, format="parquet", partitioning="hive").to_table()
    by_spark = spark.read.parquet(str(tmp_path))

    assert sorted(by_spark.collect()) == [(0, batch_id), (1, batch_id)]
    assert by_spark.columns == arrow.column_names == ["id", "batch_id"]
    assert sorted(arrow["id"].to_pylist()) == [0, 1]


def test_another_attempt_at_a_batch_replaces_what_was_stored_of_it(
    client: Client, location: str, spark: SparkSession
) -> None:
    publish(client, ["a"])
    first = attempt(client, location, numbers(spark, 1))
    first.ack()
    publish(client, ["b"])
    attempt(client, location, numbers(spark, 3)).release()
    attempt(client, location, numbers(spark, 1)).release()

    again = attempt(client, location, numbers(spark, 2))

    expected = [(first.batch_id, 0), (again.batch_id, 0), (again.batch_id, 1)]
    assert stored(location, spark) == expected
    assert len(files(location)) == len(sink(location).files())


def test_an_attempt_that_is_overtaken_while_it_writes_leaves_no_rows(
    client: Client, location: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(client, ["a"])
    late = claim(client)
    overtaken_when_it_has_files(
        monkeypatch, late, location, lambda: attempt(client, location, numbers(spark, 2)).ack()
    )

    with pytest.raises(BatchNotOpen):
        write(late, location, numbers(spark, 3))

    assert [number for _, number in stored(location, spark)] == [0, 1]
    assert len(files(location)) == len(sink(location).files())


def overtaken_when_it_has_files(
    monkeypatch: pytest.MonkeyPatch, late: Batch, location: str, overtake: Callable[[], None]
) -> None:
    """Has another attempt done once the late one has files, when it asks for its lease."""
    renew, overtakers = late.renew, [overtake]

    def renewing() -> None:
        if overtakers and files(location):
            overtakers.pop()()
        renew()

    monkeypatch.setattr(late, "renew", renewing)


def test_an_attempt_that_was_overtaken_fails_before_spark_works(
    client: Client, tmp_path: Path, spark: SparkSession
) -> None:
    publish(client, ["a"])
    late = claim(client)
    claim(client)
    raising = spark.range(1).select(f.raise_error(f.lit("computed")))

    with pytest.raises(LeaseLost):
        write(late, tmp_path, raising)


def test_a_write_that_fails_leaves_the_batch_as_it_was(
    client: Client, tmp_path: Path, spark: SparkSession
) -> None:
    publish(client, ["a"])
    first = attempt(client, tmp_path, numbers(spark, 2))

    with pytest.raises(PySparkException, match="no good"):
        raising = f.raise_error(f.lit("no good")).cast("bigint")
        attempt(client, tmp_path, numbers(spark, 5).select(raising.alias("id")))

    assert stored(tmp_path, spark) == [(first.batch_id, 0), (first.batch_id, 1)]
    assert names(tmp_path / f"batch_id={first.batch_id}") == ["publication-1"]


def test_what_killed_attempts_left_is_not_read_and_goes_with_the_next(
    client: Client, tmp_path: Path, spark: SparkSession
) -> None:
    publish(client, ["a"])
    first = attempt(client, tmp_path, numbers(spark, 2))
    folder = tmp_path / f"batch_id={first.batch_id}"
    for name in (".writing-1.a", ".trash-c", ".writing-9.d"):
        numbers(spark, 7).write.parquet(str(folder / name))
    assert spark.read.parquet(str(tmp_path)).count() == 2

    attempt(client, tmp_path, numbers(spark, 3))

    assert spark.read.parquet(str(tmp_path)).count() == 3
    assert names(folder) == [".writing-9.d", "publication-1", "publication-2"]
    assert list((folder / "publication-1").rglob("*.parquet")) == []


def test_an_empty_batch_is_a_batch(client: Client, location: str, spark: SparkSession) -> None:
    publish(client, ["a"])

    attempt(client, location, numbers(spark, 0))

    assert stored(location, spark) == []


@pytest.mark.parametrize("is_same_object", [True, False])
def test_a_claim_writes_its_batch_to_a_location_once(
    client: Client, location: str, spark: SparkSession, is_same_object: bool
) -> None:
    publish(client, ["a"])
    claimed = claim(client)
    batch = SparkBatch(spark, claimed, client.url)
    sink(location).write(batch, numbers(spark, 2))
    again = batch if is_same_object else SparkBatch(spark, claimed, client.url)

    with pytest.raises(InvalidArgument, match="write them once"):
        sink(location).write(again, numbers(spark, 2))

    assert len(stored(location, spark)) == 2


def test_batches_are_read_from_one_on_or_by_their_ids(
    client: Client, location: str, spark: SparkSession
) -> None:
    ids = []
    for number in range(3):
        publish(client, [f"{number}"])
        claimed = attempt(client, location, numbers(spark, number + 1))
        claimed.ack()
        ids.append(claimed.batch_id)

    def read(**wanted: Any) -> list[int]:
        return sorted({row.batch_id for row in sink(location).read(spark, **wanted).collect()})

    assert read(since=ids[1]) == ids[1:]
    assert read(batches=[ids[0], ids[2]]) == [ids[0], ids[2]]
    assert read(batches=[]) == []
    assert len(sink(location).files(batches=ids[:2])) < len(sink(location).files())


def test_tables_of_replays_in_a_location_are_read_with_the_column_replay(
    client: Client, location: str, spark: SparkSession
) -> None:
    publish(client, ["a"])
    claimed = attempt(client, f"{location}/replay=first", numbers(spark, 2))
    claimed.ack()

    table = sink(location).read(spark)

    assert table.columns == ["id", "replay", "batch_id"]
    assert sorted(table.collect()) == [(n, "first", claimed.batch_id) for n in range(2)]
    assert len(sink(location).files()) == len(files(location))


def test_the_newest_batch_has_the_columns_of_a_table_in_an_object_store(
    client: Client, s3: S3, spark: SparkSession
) -> None:
    OPTIONS.update(s3.options)
    location = s3.url(uuid.uuid4().hex)
    publish(client, ["a"])
    attempt(client, location, numbers(spark, 1)).ack()
    publish(client, ["b"])
    wider = numbers(spark, 1).withColumn("name", f.lit("tea"))
    attempt(client, location, wider).ack()

    table = sink(location).read(spark)

    assert table.columns == ["id", "name", "batch_id"]
    assert [row.name for row in table.orderBy("batch_id").collect()] == [None, "tea"]


def test_another_program_reads_an_object_store_by_its_manifests(
    client: Client, s3: S3, spark: SparkSession
) -> None:
    OPTIONS.update(s3.options)
    location = s3.url("manifests/table")
    publish(client, ["a"])
    attempt(client, location, numbers(spark, 5)).release()
    attempt(client, location, numbers(spark, 2)).ack()

    assert rows_by_manifests(s3, "manifests/table") == [(0,), (1,)]
    urls = sorted(sink(location).files())
    assert all(url.startswith(f"{location}/batch_id=") for url in urls)


def test_only_one_of_two_attempts_creates_a_manifest(
    client: Client, s3: S3, spark: SparkSession
) -> None:
    storage = Storage.of(s3.url(uuid.uuid4().hex), s3.options)
    publish(client, ["a"])
    claimed = claim(client)
    first, second = (
        ManifestOutput(storage, claimed, Attempt(1, name), spark.range(1).schema) for name in "ab"
    )
    state = first.read()

    assert second.replace(second.read())
    assert not first.replace(state)
    assert first.published(first.read()) == Attempt(1, "b")


def test_files_that_were_swept_before_they_were_published_are_not_published(
    client: Client, s3: S3, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    OPTIONS.update(s3.options)
    location = s3.url(uuid.uuid4().hex)
    publish(client, ["a"])
    claimed = claim(client)

    def sweep() -> None:
        assert sink(location).sweep(ago(-60))

    overtaken_when_it_has_files(monkeypatch, claimed, location, sweep)

    with pytest.raises(StorageFailed, match="has lost"):
        write(claimed, location, numbers(spark, 3))

    attempt(client, location, numbers(spark, 2)).ack()
    assert len(stored(location, spark)) == 2


def ago(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def test_a_sweep_removes_what_nobody_reads_and_is_old(
    client: Client, location: str, spark: SparkSession
) -> None:
    publish(client, ["a"])
    claimed = attempt(client, location, numbers(spark, 2))
    leftover = leave(location, f"batch_id={claimed.batch_id}")

    assert sink(location).sweep() == 0
    assert leftover in files(location)
    assert sink(location).sweep(ago(-60)) == 1
    assert leftover not in files(location)
    assert len(stored(location, spark)) == 2


def leave(location: str, batch: str) -> str:
    """A file of an attempt that was killed; returns its name."""
    if not location.startswith("s3:"):
        path = Path(location, batch, ".writing-7.killed", "part-0.parquet")
        path.parent.mkdir()
        path.touch()
        return str(path)
    s3 = S3(OPTIONS["aws_endpoint_url"])
    name = f"{location.removeprefix(s3.url(''))}/{batch}/epoch-7.killed/part-0.parquet"
    s3.client.put_object(Bucket=BUCKET, Key=name, Body=b"")
    return name
