"""Batches as Parquet, in a directory or an object store: each once, however often it is written."""

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pgque_dagster.client import Batch, BatchNotOpen, Client, InvalidArgument, LeaseLost
from pgque_dagster.spark import ParquetSink, SparkBatch
from pgque_dagster.spark.sinks.folders import Folders
from pgque_dagster.spark.sinks.object_store import ManifestOutput
from pgque_dagster.spark.sinks.publication import Attempt
from pgque_dagster.spark.sinks.storage import Storage, StorageFailed
from tests.conftest import TEMPLATE, Server, administer
from tests.support.events import claim, make_queue, publish
from tests.support.s3 import BUCKET, S3
from tests.support.stored_tables import rows_by_manifests

AGO = timedelta(seconds=-60)  # so that every file is old enough to be swept


class Place:
    """A location of a table, and attempts to store batches there."""

    def __init__(self, spark: SparkSession, location: object, s3: S3 | None = None) -> None:
        self.spark, self.location, self.s3 = spark, str(location), s3
        self.sink = ParquetSink(self.location, storage_options=s3.options if s3 else None)

    def at(self, path: str) -> "Place":
        return Place(self.spark, f"{self.location}/{path}", self.s3)

    def write(self, claimed: Batch, rows: int | DataFrame) -> str:
        """Stores the numbers below this one, or a DataFrame."""
        frame = self.spark.range(rows) if isinstance(rows, int) else rows
        return self.sink.write(SparkBatch(self.spark, claimed, claimed.session.url), frame)

    def attempt(self, client: Client, rows: int | DataFrame) -> Batch:
        """Claims the open batch, or the next one, and writes it."""
        claimed = claim(client)
        self.write(claimed, rows)
        return claimed

    def store(self, client: Client, rows: int | DataFrame) -> Batch:
        """Publishes an event, stores the batch and acks it."""
        publish(client, ["a"])
        claimed = self.attempt(client, rows)
        claimed.ack()
        return claimed

    def rows(self) -> list[tuple[int, int]]:
        return sorted((row.batch_id, row.id) for row in self.sink.read(self.spark).collect())

    @property
    def key(self) -> str:
        """The location in its bucket."""
        assert self.s3 is not None
        return self.location.removeprefix(self.s3.url(""))

    def files(self) -> list[str]:
        """The Parquet files that are there, whether they count or not."""
        if self.s3:
            found = self.s3.names(self.key)
        else:
            found = [str(path) for path in Path(self.location).rglob("*")]
        return [name for name in found if name.endswith(".parquet")]

    def leave(self, batch: int) -> str:
        """A file of an attempt that was killed; returns its name."""
        if self.s3:
            name = f"{self.key}/batch_id={batch}/epoch-7.killed/part-0.parquet"
            self.s3.client.put_object(Bucket=BUCKET, Key=name, Body=b"")
            return name
        path = Path(self.location, f"batch_id={batch}", ".writing-7.killed", "part-0.parquet")
        path.parent.mkdir()
        path.touch()
        return str(path)

    def rename_mark(self, old: object, new: object) -> None:
        """Has the lineage of another database own the batches."""
        marks = Path(self.location, "_pgque/lineages")
        if not self.s3:
            (marks / str(old)).rename(marks / str(new))
            return
        (name,) = self.s3.names(f"{self.key}/_pgque/lineages")
        target = name.replace(str(old), str(new))
        source = {"Bucket": BUCKET, "Key": name}
        self.s3.client.copy_object(Bucket=BUCKET, Key=target, CopySource=source)
        self.s3.client.delete_object(Bucket=BUCKET, Key=name)


@pytest.fixture
def directory(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path / "with space")


@pytest.fixture
def bucket(spark: SparkSession, s3: S3) -> Place:
    return Place(spark, s3.url(f"{uuid.uuid4().hex}/with space"), s3)


@pytest.fixture(params=["directory", pytest.param("bucket", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def names(folder: str | Path) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def overtaken_when_it_has_files(
    monkeypatch: pytest.MonkeyPatch, late: Batch, place: Place, overtake: Callable[[], object]
) -> None:
    """Has something done once an attempt has files, when it asks for its lease."""
    renew, overtakers = late.renew, [overtake]

    def renewing() -> None:
        if overtakers and place.files():
            overtakers.pop()()
        renew()

    monkeypatch.setattr(late, "renew", renewing)


def test_all_batches_are_one_table_which_is_read_from_one_on_or_by_their_ids(
    client: Client, place: Place
) -> None:
    ids = [place.store(client, rows).batch_id for rows in (1, 2, 0, 3)]

    def read(**wanted: Any) -> list[int]:
        table = place.sink.read(place.spark, **wanted)
        return sorted({row.batch_id for row in table.collect()})

    first, second, empty, last = ids
    assert place.sink.read(place.spark).columns == ["id", "batch_id"]
    assert place.rows() == [
        *((first, 0), (second, 0), (second, 1)), *((last, n) for n in range(3))
    ]  # fmt: skip
    assert read(since=second) == [second, last]
    assert read(batches=[first, last]) == [first, last]
    assert read(batches=[]) == read(batches=[empty]) == []
    assert len(place.sink.files(batches=ids[:2])) < len(place.sink.files())


def test_spark_and_arrow_read_a_directory_as_one_table(client: Client, directory: Place) -> None:
    batch_id = directory.store(client, 2).batch_id

    arrow = ds.dataset(directory.location, format="parquet", partitioning="hive").to_table()
    by_spark = directory.spark.read.parquet(directory.location)

    assert sorted(by_spark.collect()) == [(0, batch_id), (1, batch_id)]
    assert by_spark.columns == arrow.column_names == ["id", "batch_id"]
    assert sorted(arrow["id"].to_pylist()) == [0, 1]


def test_another_attempt_at_a_batch_replaces_what_was_stored_of_it(
    client: Client, place: Place
) -> None:
    first = place.store(client, 1)
    publish(client, ["b"])
    for rows in (3, 1):
        place.attempt(client, rows).release()

    again = place.attempt(client, 2)

    assert place.rows() == [(first.batch_id, 0), (again.batch_id, 0), (again.batch_id, 1)]
    assert len(place.files()) == len(place.sink.files())


def test_an_attempt_that_is_overtaken_while_it_writes_leaves_no_rows(
    client: Client, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(client, ["a"])
    late = claim(client)
    overtaken_when_it_has_files(monkeypatch, late, place, lambda: place.attempt(client, 2).ack())

    with pytest.raises(BatchNotOpen):
        place.write(late, 3)

    assert [number for _, number in place.rows()] == [0, 1]
    assert len(place.files()) == len(place.sink.files())


def test_an_attempt_that_was_overtaken_fails_before_spark_works(
    client: Client, directory: Place
) -> None:
    publish(client, ["a"])
    late = claim(client)
    claim(client)

    with pytest.raises(LeaseLost):
        directory.write(late, directory.spark.range(1).select(f.raise_error(f.lit("computed"))))


def test_a_write_that_fails_leaves_the_batch_as_it_was(client: Client, directory: Place) -> None:
    publish(client, ["a"])
    first = directory.attempt(client, 2).batch_id

    with pytest.raises(PySparkException, match="no good"):
        raising = f.raise_error(f.lit("no good")).cast("bigint").alias("id")
        directory.attempt(client, directory.spark.range(5).select(raising))

    assert directory.rows() == [(first, 0), (first, 1)]
    assert names(f"{directory.location}/batch_id={first}") == ["publication-1"]


def test_what_killed_attempts_left_is_not_read_and_goes_with_the_next(
    client: Client, directory: Place
) -> None:
    publish(client, ["a"])
    spark, location = directory.spark, directory.location
    folder = Path(location, f"batch_id={directory.attempt(client, 2).batch_id}")
    for name in (".writing-1.a", ".trash-c", ".writing-9.d"):
        spark.range(7).write.parquet(str(folder / name))
    assert spark.read.parquet(location).count() == 2

    directory.attempt(client, 3)

    assert spark.read.parquet(location).count() == 3
    assert names(folder) == [".writing-9.d", "publication-1", "publication-2"]
    assert list((folder / "publication-1").rglob("*.parquet")) == []


def test_a_claim_writes_its_batch_to_a_location_once(client: Client, place: Place) -> None:
    publish(client, ["a"])
    claimed = claim(client)
    batch = SparkBatch(place.spark, claimed, client.url)
    place.sink.write(batch, place.spark.range(2))

    for again in (batch, SparkBatch(place.spark, claimed, client.url)):
        with pytest.raises(InvalidArgument, match="write them once"):
            place.sink.write(again, place.spark.range(2))

    assert len(place.rows()) == 2


def test_tables_of_replays_in_a_location_are_read_with_the_column_replay(
    client: Client, place: Place
) -> None:
    batch_id = place.at("replay=first").store(client, 2).batch_id

    table = place.sink.read(place.spark)

    assert table.columns == ["id", "replay", "batch_id"]
    assert sorted(table.collect()) == [(n, "first", batch_id) for n in range(2)]
    assert len(place.sink.files()) == len(place.files())


def test_a_table_in_an_object_store_is_read_by_its_manifests(
    client: Client, bucket: Place, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(client, ["a"])
    late = claim(client)
    overtaken_when_it_has_files(monkeypatch, late, bucket, lambda: bucket.attempt(client, 2).ack())
    with pytest.raises(BatchNotOpen):
        bucket.write(late, 5)

    assert rows_by_manifests(s3, bucket.key) == [(0,), (1,)]
    assert all(url.startswith(f"{bucket.location}/batch_id=") for url in bucket.sink.files())

    # The newest batch has the columns of the table.
    bucket.store(client, bucket.spark.range(1).withColumn("name", f.lit("tea")))
    table = bucket.sink.read(bucket.spark)
    assert table.columns == ["id", "name", "batch_id"]
    assert [row.name for row in table.orderBy("batch_id").collect()] == [None, None, "tea"]


def test_only_one_of_two_attempts_creates_a_manifest(client: Client, bucket: Place) -> None:
    assert bucket.s3 is not None
    storage = Storage.of(bucket.location, bucket.s3.options)
    publish(client, ["a"])
    claimed, schema = claim(client), bucket.spark.range(1).schema
    first, second = (ManifestOutput(storage, claimed, Attempt(1, name), schema) for name in "ab")
    state = first.read()

    assert second.replace(second.read())
    assert not first.replace(state)
    assert first.published(first.read()) == Attempt(1, "b")


def test_objects_that_were_swept_before_they_were_published_are_not_published(
    client: Client, bucket: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(client, ["a"])
    claimed = claim(client)

    def sweep() -> None:
        assert bucket.sink.sweep(AGO)

    overtaken_when_it_has_files(monkeypatch, claimed, bucket, sweep)

    with pytest.raises(StorageFailed, match="has lost"):
        bucket.write(claimed, 3)

    bucket.attempt(client, 2).ack()
    assert len(bucket.rows()) == 2


def test_a_sweep_removes_what_nobody_reads_and_is_old(client: Client, place: Place) -> None:
    leftover = place.leave(place.store(client, 2).batch_id)

    assert place.sink.sweep() == 0
    assert leftover in place.files()
    assert place.sink.sweep(AGO) == 1
    assert leftover not in place.files()
    assert len(place.rows()) == 2


@pytest.mark.slow
def test_a_sweep_keeps_a_table_in_the_folder_of_another_one_in_an_object_store(
    client: Client, bucket: Place
) -> None:
    inner, replay = bucket.at("inner"), bucket.at("replay=again")
    for each in (bucket, inner, replay):
        for _ in range(2):
            batch_id = each.store(client, 1).batch_id
    left = {each.leave(batch_id) for each in (bucket, replay)}

    assert bucket.sink.sweep(AGO) == len(left)

    assert not left & set(bucket.files())
    assert (len(bucket.rows()), len(inner.rows())) == (4, 2)


# Whose batches a location holds, and where one may be.


@pytest.fixture
def other_database(server: Server) -> Iterator[Client]:
    """A copy of the same template, as if the queue was copied with its database."""
    administer(server, f"create database another template {TEMPLATE}")
    with Client(server.database_url("another")) as client:
        make_queue(client)
        publish(client, ["b"])
        yield client
    administer(server, "drop database another with (force)")


def test_another_database_is_refused_where_batches_of_the_first_are(
    client: Client, other_database: Client, place: Place
) -> None:
    place.store(client, 2)

    with pytest.raises(InvalidArgument) as refused:
        place.attempt(other_database, 5)

    told = str(refused.value)
    assert f"batches of lineage {client.lineage()}" in told
    assert f"lineage {other_database.lineage()}" in told
    assert place.location in told and "Write to another directory" in told

    place.rename_mark(client.lineage(), other_database.lineage())
    place.attempt(other_database, 5).ack()


def test_batches_of_an_unknown_database_are_refused(client: Client, directory: Place) -> None:
    directory.spark.range(3).write.parquet(f"{directory.location}/batch_id=1")
    publish(client, ["a"])

    with pytest.raises(InvalidArgument, match="unknown database") as refused:
        directory.attempt(client, 2)

    assert directory.spark.read.parquet(directory.location).count() == 3
    mark = Path(directory.location, "_pgque", "lineages", str(client.lineage()))
    assert f"/_pgque/lineages/{client.lineage()}/" in str(refused.value)
    mark.mkdir(parents=True)
    (mark / "note").write_text("ours")
    directory.attempt(client, 2)

    # A location says to people whose it is.
    other = Place(directory.spark, Path(directory.location).with_name("sales"))
    other.store(client, 2)
    (mark,) = Path(other.location, "_pgque", "lineages").iterdir()
    note = json.loads((mark / "lineage.json").read_text())
    assert note["lineage"] == mark.name == str(client.lineage())
    assert note["database"] == client.database


@pytest.mark.slow
def test_objects_of_an_unknown_database_are_refused(client: Client, bucket: Place, s3: S3) -> None:
    s3.client.put_object(Bucket=BUCKET, Key=f"{bucket.key}/batch_id=1/part-0.parquet", Body=b"")
    publish(client, ["a"])

    with pytest.raises(InvalidArgument, match="unknown database"):
        bucket.attempt(client, 2)


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


def test_a_column_that_the_directory_would_hide_is_refused(client: Client, place: Place) -> None:
    publish(client, ["a"])
    for path, name in ((".", "batch_id"), (".", "Batch_Id"), ("replay=x", "replay")):
        where = place if path == "." else place.at(path)
        with pytest.raises(InvalidArgument, match=f"column {name} would be hidden"):
            where.attempt(client, place.spark.range(1).withColumnRenamed("id", name))


def test_a_table_inside_another_is_refused_whichever_is_first(
    client: Client, directory: Place
) -> None:
    directory.at("sales").store(client, 1)
    directory.at("stock/daily").store(client, 1)
    publish(client, ["c"])

    for path in ("sales/daily", "stock"):
        with pytest.raises(InvalidArgument, match="is inside the other"):
            directory.at(path).attempt(client, 1)


@pytest.mark.parametrize("name", ["a?b", "a*", "a\\b", "o[1]"])
def test_a_location_that_spark_takes_for_a_pattern_is_refused(
    client: Client, directory: Place, name: str
) -> None:
    publish(client, ["a"])

    with pytest.raises(InvalidArgument, match="for a pattern"):
        directory.at(name).attempt(client, 1)


@pytest.mark.parametrize("scheme", ["file:", "file://"])
def test_a_file_url_is_a_directory(
    client: Client, spark: SparkSession, tmp_path: Path, scheme: str
) -> None:
    Place(spark, f"{scheme}{tmp_path}/table").store(client, 2)

    assert sorted(row.id for row in spark.read.parquet(str(tmp_path / "table")).collect()) == [0, 1]


def test_a_url_that_cannot_be_written_with_conditions_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="hdfs: URLs") as refused:
        ParquetSink("hdfs://namenode/table")

    assert "Mount" in str(refused.value)
