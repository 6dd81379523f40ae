"""Batches as Parquet: each once, however often it is written."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow.dataset as ds
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pgque_dagster.client import Batch, BatchNotOpen, Client, InvalidArgument, LeaseLost
from pgque_dagster.spark import SparkBatch
from pgque_dagster.spark.sinks import ParquetSink
from pgque_dagster.spark.sinks.folders import Folders
from tests.conftest import TEMPLATE, Server, administer
from tests.support.events import claim, make_queue, publish


@pytest.fixture(params=["path", "url"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A directory, and one that Spark is given as a URL, as stores without rename are."""
    folder = tmp_path / "with space"
    return str(folder) if request.param == "path" else f"file://{folder}"


def numbers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count)


def attempt(client: Client, location: object, frame: DataFrame) -> Batch:
    """Claims the open batch, or the next one, and writes it."""
    claimed = claim(client)
    write(claimed, location, frame)
    return claimed


def write(claimed: Batch, location: object, frame: DataFrame) -> str:
    batch = SparkBatch(frame.sparkSession, claimed, claimed.session.url)
    return ParquetSink(str(location)).write(batch, frame)


def stored(location: object, spark: SparkSession) -> list[tuple[int, int]]:
    table = ParquetSink(str(location)).read(spark)
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

    arrow = ds.dataset(urlsplit(location).path, format="parquet", partitioning="hive").to_table()

    assert stored(location, spark) == [(first.batch_id, 0), (first.batch_id, 1), (second, 0)]
    assert spark.read.parquet(location).columns == ["id", "batch_id"]
    assert arrow.column_names == ["id", "batch_id"]
    assert arrow.num_rows == 3


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
    assert spark.read.parquet(location).count() == 3


def test_an_attempt_that_is_overtaken_while_it_writes_leaves_no_rows(
    client: Client, location: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(client, ["a"])
    late = claim(client)
    folder = Path(urlsplit(location).path)
    overtaken_before_the_lease_is_checked(
        monkeypatch, late, folder, lambda: attempt(client, location, numbers(spark, 2)).ack()
    )

    with pytest.raises(BatchNotOpen):
        write(late, location, numbers(spark, 3))

    assert [number for _, number in stored(location, spark)] == [0, 1]
    assert spark.read.parquet(location).count() == 2


def overtaken_before_the_lease_is_checked(
    monkeypatch: pytest.MonkeyPatch, late: Batch, folder: Path, overtake: Callable[[], None]
) -> None:
    """Has another attempt done once the late one has files, when it asks for its lease."""
    renew, overtakers = late.renew, [overtake]

    def renewing() -> None:
        if overtakers and any(folder.rglob("*.parquet")):
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


def test_read_leaves_out_what_a_stale_attempt_left_beside_an_acked_one(
    client: Client, tmp_path: Path, spark: SparkSession
) -> None:
    url = f"file://{tmp_path}/with space"
    publish(client, ["a"])
    claim(client)
    acked = attempt(client, url, numbers(spark, 2))
    acked.ack()
    numbers(spark, 7).write.parquet(f"{url}/batch_id={acked.batch_id}/epoch-1")

    assert acked.lease.epoch == 2
    assert stored(url, spark) == [(acked.batch_id, 0), (acked.batch_id, 1)]
    assert ParquetSink(url).read(spark).columns == ["id", "batch_id"]


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
    ParquetSink(location).write(batch, numbers(spark, 2))
    again = batch if is_same_object else SparkBatch(spark, claimed, client.url)

    with pytest.raises(InvalidArgument, match="write them once"):
        ParquetSink(location).write(again, numbers(spark, 2))

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

        marks = Path(urlsplit(location).path) / "_pgque" / "lineages"
        (marks / str(client.lineage())).rename(marks / str(other.lineage()))
        attempt(other, location, numbers(spark, 5)).ack()


def test_batches_of_an_unknown_database_are_refused(
    client: Client, location: str, spark: SparkSession
) -> None:
    numbers(spark, 3).write.parquet(f"{location}/batch_id=1")
    publish(client, ["a"])

    with pytest.raises(InvalidArgument, match="unknown database") as refused:
        attempt(client, location, numbers(spark, 2))

    assert spark.read.parquet(location).count() == 3
    mark = Path(urlsplit(location).path) / "_pgque" / "lineages" / str(client.lineage())
    assert f"/_pgque/lineages/{client.lineage()}/" in str(refused.value)
    mark.mkdir(parents=True)
    (mark / "note").write_text("ours")
    attempt(client, location, numbers(spark, 2))


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


def test_a_url_with_one_slash_is_one(client: Client, spark: SparkSession, tmp_path: Path) -> None:
    publish(client, ["a"])

    attempt(client, f"file:{tmp_path}/table", numbers(spark, 2)).ack()

    assert sorted(row.id for row in spark.read.parquet(str(tmp_path / "table")).collect()) == [0, 1]
