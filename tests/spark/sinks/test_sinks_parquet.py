"""Batches as Parquet: each once, however often it is written."""

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pgque_dagster.client import Batch, BatchNotOpen, Client, InvalidArgument, LeaseLost
from pgque_dagster.spark import SparkBatch
from pgque_dagster.spark.sinks import ParquetSink
from pgque_dagster.spark.sinks.folders import Folders
from pgque_dagster.spark.sinks.object_store import ManifestOutput
from pgque_dagster.spark.sinks.publication import Attempt
from pgque_dagster.spark.sinks.storage import Storage, StorageFailed
from tests.conftest import TEMPLATE, Server, administer
from tests.support.events import claim, make_queue, publish
from tests.support.s3 import BUCKET, S3
from tests.support.stored_tables import rows_by_manifests

# How to access the locations that are URLs.
OPTIONS: dict[str, str] = {}


@pytest.fixture(params=["directory", "s3"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A directory, and one in an object store."""
    if request.param == "directory":
        return str(tmp_path / "with space")
    s3: S3 = request.getfixturevalue("s3")
    OPTIONS.update(s3.options)
    return s3.url(f"{uuid.uuid4().hex}/with space")


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


@contextmanager
def another_database(server: Server) -> Iterator[Client]:
    """A copy of the same template, as if the queue was copied with its database."""
    administer(server, f"create database another template {TEMPLATE}")
    with Client(server.database_url("another")) as client:
        yield client
    administer(server, "drop database another with (force)")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


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


def files(location: str) -> list[str]:
    """The Parquet files that are there, whether they count or not."""
    if location.startswith("s3:"):
        s3 = S3(OPTIONS["aws_endpoint_url"])
        found = s3.names(location.removeprefix(s3.url("")))
    else:
        found = [str(path) for path in Path(location).rglob("*")]
    return [name for name in found if name.endswith(".parquet")]


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


def test_another_database_is_refused_where_batches_of_the_first_are(
    client: Client, server: Server, location: str, spark: SparkSession
) -> None:
    publish(client, ["a"])
    attempt(client, location, numbers(spark, 2)).ack()
    with another_database(server) as other:
        make_queue(other)
        publish(other, ["b"])

        with pytest.raises(InvalidArgument) as refused:
            attempt(other, location, numbers(spark, 5))

        told = str(refused.value)
        assert f"batches of lineage {client.lineage()}" in told
        assert f"lineage {other.lineage()}" in told
        assert location in told and "Write to another directory" in told

        rename_mark(location, client, other)
        attempt(other, location, numbers(spark, 5)).ack()


def rename_mark(location: str, old: Client, new: Client) -> None:
    marks = f"{location}/_pgque/lineages"
    if not location.startswith("s3:"):
        Path(marks, str(old.lineage())).rename(Path(marks, str(new.lineage())))
        return
    s3 = S3(OPTIONS["aws_endpoint_url"])
    (name,) = s3.names(marks.removeprefix(s3.url("")))
    target = name.replace(str(old.lineage()), str(new.lineage()))
    s3.client.copy_object(Bucket=BUCKET, Key=target, CopySource={"Bucket": BUCKET, "Key": name})
    s3.client.delete_object(Bucket=BUCKET, Key=name)


def test_batches_of_an_unknown_database_are_refused(
    client: Client, tmp_path: Path, spark: SparkSession
) -> None:
    numbers(spark, 3).write.parquet(str(tmp_path / "batch_id=1"))
    publish(client, ["a"])

    with pytest.raises(InvalidArgument, match="unknown database") as refused:
        attempt(client, tmp_path, numbers(spark, 2))

    assert spark.read.parquet(str(tmp_path)).count() == 3
    mark = tmp_path / "_pgque" / "lineages" / str(client.lineage())
    assert f"/_pgque/lineages/{client.lineage()}/" in str(refused.value)
    mark.mkdir(parents=True)
    (mark / "note").write_text("ours")
    attempt(client, tmp_path, numbers(spark, 2))


def test_objects_of_an_unknown_database_are_refused(
    client: Client, s3: S3, spark: SparkSession
) -> None:
    OPTIONS.update(s3.options)
    s3.client.put_object(Bucket=BUCKET, Key="unknown/batch_id=1/part-0.parquet", Body=b"")
    publish(client, ["a"])

    with pytest.raises(InvalidArgument, match="unknown database"):
        attempt(client, s3.url("unknown"), numbers(spark, 2))


def test_a_location_says_to_people_whose_it_is(
    client: Client, tmp_path: Path, spark: SparkSession
) -> None:
    publish(client, ["a"])

    attempt(client, tmp_path, numbers(spark, 2))

    (mark,) = (tmp_path / "_pgque" / "lineages").iterdir()
    note = json.loads((mark / "lineage.json").read_text())
    assert note["lineage"] == mark.name == str(client.lineage())
    assert note["database"] == client.database


def test_of_two_databases_that_mark_a_directory_at_once_one_is_refused(tmp_path: Path) -> None:
    folders = Folders(tmp_path / "table")
    begin = threading.Barrier(8)

    def mark(number: int) -> None:
        begin.wait()
        folders.mark(f"lineage {number}", "{}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(mark, range(8)))

    assert len(folders.lineages()) == 1
    assert names(tmp_path / "table" / "_pgque") == ["lineages"]


@pytest.mark.parametrize("name", ["batch_id", "Batch_Id"])
def test_a_column_that_the_directory_would_hide_is_refused(
    client: Client, spark: SparkSession, location: str, name: str
) -> None:
    publish(client, ["a"])

    with pytest.raises(InvalidArgument, match=f"column {name} would be hidden"):
        attempt(client, location, spark.range(1).withColumnRenamed("id", name))
    with pytest.raises(InvalidArgument, match="column replay would be hidden"):
        attempt(client, f"{location}/replay=x", spark.range(1).withColumnRenamed("id", "replay"))


def test_a_table_inside_another_is_refused_whichever_is_first(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    publish(client, ["a"])
    attempt(client, tmp_path / "sales", numbers(spark, 1)).ack()
    attempt_at = tmp_path / "stock" / "daily"
    publish(client, ["b"])
    attempt(client, attempt_at, numbers(spark, 1)).ack()
    publish(client, ["c"])
    claimed = claim(client)

    with pytest.raises(InvalidArgument, match="is inside the other"):
        write(claimed, tmp_path / "sales" / "daily", numbers(spark, 1))
    with pytest.raises(InvalidArgument, match="is inside the other"):
        write(claimed, tmp_path / "stock", numbers(spark, 1))


def test_a_location_that_spark_takes_for_a_pattern_is_refused(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    publish(client, ["a"])

    with pytest.raises(InvalidArgument, match="for a pattern"):
        attempt(client, tmp_path / "o[1]", numbers(spark, 1))


@pytest.mark.parametrize("scheme", ["file:", "file://"])
def test_a_file_url_is_a_directory(
    client: Client, spark: SparkSession, tmp_path: Path, scheme: str
) -> None:
    publish(client, ["a"])

    attempt(client, f"{scheme}{tmp_path}/table", numbers(spark, 2)).ack()

    assert sorted(row.id for row in spark.read.parquet(str(tmp_path / "table")).collect()) == [0, 1]


def test_a_url_that_cannot_be_written_with_conditions_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="hdfs: URLs") as refused:
        ParquetSink("hdfs://namenode/table")

    assert "Mount" in str(refused.value)


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
