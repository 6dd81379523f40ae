"""Where Parquet tables may be, and whose batches a location holds."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Client, InvalidArgument
from pgque_dagster.spark.sinks import ParquetSink
from pgque_dagster.spark.sinks.folders import Folders
from tests.conftest import TEMPLATE, Server, administer
from tests.support.events import claim, make_queue, publish
from tests.support.parquet_tables import (
    OPTIONS,
    attempt,
    names,
    numbers,
    write,
)
from tests.support.s3 import BUCKET, S3


@contextmanager
def another_database(server: Server) -> Iterator[Client]:
    """A copy of the same template, as if the queue was copied with its database."""
    administer(server, f"create database another template {TEMPLATE}")
    with Client(server.database_url("another")) as client:
        yield client
    administer(server, "drop database another with (force)")


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
