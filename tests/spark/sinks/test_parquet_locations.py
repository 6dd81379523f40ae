"""Whose batches a directory of Parquet holds, and where one may be."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from pgque_dagster import ParquetBatchIOManager
from pgque_dagster.client import Client, InvalidArgument
from pgque_dagster.spark import ParquetSink
from pgque_dagster.spark.sinks.files.record import incarnations, mark
from tests.support.queues.events import publish
from tests.support.spark.directories import Place, everything, names


def test_attempts_write_beside_the_directory_that_a_link_names(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "disk" / "table").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "table")

    Place(spark, tmp_path / "link").store(client, 2)

    assert names(tmp_path) == ["disk", "link"]
    assert names(tmp_path / "disk") == [".table.pgque", "table"]


def test_the_root_of_a_file_system_is_refused(
    client: Client, directory: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os.path, "ismount", lambda path: True)
    publish(client, ["a"])

    with pytest.raises(InvalidArgument, match="Write to a directory in it"):
        directory.attempt(client, 1)


def test_another_database_is_refused_where_batches_of_the_first_are(
    client: Client, other_database: Client, directory: Place
) -> None:
    directory.store(client, 2)
    publish(other_database, ["b"])

    with pytest.raises(InvalidArgument) as refused:
        directory.attempt(other_database, 5)

    told = str(refused.value)
    assert f"batches of incarnation {client.incarnation()}" in told
    assert f"incarnation {other_database.incarnation()}" in told
    assert directory.location in told and "Store into another table" in told

    directory.rename_mark(client.incarnation(), other_database.incarnation())
    directory.attempt(other_database, 5).ack()


def test_batches_of_an_unknown_database_are_refused(client: Client, directory: Place) -> None:
    spark = directory.spark
    spark.range(3).withColumn("batch_id", f.lit(1)).write.parquet(f"{directory.location}/batch-1")
    publish(client, ["a"])

    with pytest.raises(InvalidArgument, match="unknown database") as refused:
        directory.attempt(client, 2)

    assert everything(directory.spark, directory.location).count() == 3
    mark = Path(directory.location, "_pgque", "lineages", str(client.incarnation()))
    assert f"/_pgque/lineages/{client.incarnation()}/" in str(refused.value)
    mark.mkdir(parents=True)
    (mark / "note").write_text("ours")
    directory.attempt(client, 2)

    # A location says to people whose it is.
    other = Place(directory.spark, Path(directory.location).with_name("sales"))
    other.store(client, 2)
    (mark,) = Path(other.location, "_pgque", "lineages").iterdir()
    note = json.loads((mark / "lineage.json").read_text())
    assert note["lineage"] == mark.name == str(client.incarnation())
    assert note["database"] == client.database


def test_of_two_databases_that_mark_a_directory_at_once_one_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "table"
    begin = threading.Barrier(8)

    def marking(number: int) -> None:
        begin.wait()
        mark(table, f"incarnation {number}", "{}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(marking, range(8)))

    assert len(incarnations(table)) == 1
    assert names(tmp_path / "table" / "_pgque") == ["lineages"]


def test_a_table_inside_another_is_refused_whichever_is_first(
    client: Client, directory: Place
) -> None:
    directory.at("sales").store(client, 1)
    directory.at("stock/daily").store(client, 1)
    publish(client, ["c"])

    for path in ("sales/daily", "stock"):
        with pytest.raises(InvalidArgument, match="is inside the other"):
            directory.at(path).attempt(client, 1)


@pytest.mark.parametrize("name", ["a?b", "a*", "a\\b", "o[1]", "{a,b}", "region=eu"])
def test_a_location_may_have_a_name_that_means_something_to_readers(
    client: Client, directory: Place, name: str
) -> None:
    place = directory.at(name)

    batch = place.store(client, 1)

    assert place.rows() == [(batch.batch_id, 0)]
    assert place.sink.read(place.spark).columns == ["id", "batch_id"]


@pytest.mark.parametrize("scheme", ["file:", "file://"])
def test_a_file_url_is_a_directory(
    client: Client, spark: SparkSession, tmp_path: Path, scheme: str
) -> None:
    Place(spark, f"{scheme}{tmp_path}/table").store(client, 2)

    assert sorted(row.id for row in everything(spark, tmp_path / "table").collect()) == [0, 1]


@pytest.mark.parametrize(
    ("url", "way_out"),
    [
        ("s3://bucket/table", "DeltaSink or IcebergSink"),
        ("S3A://bucket/table", "DeltaSink or IcebergSink"),
        ("gs://bucket/table", "DeltaSink or IcebergSink"),
        ("abfss://folder@account.dfs.core.windows.net/table", "DeltaSink or IcebergSink"),
        ("hdfs://namenode/table", "Mount"),
    ],
)
def test_a_url_that_is_no_directory_is_refused(url: str, way_out: str) -> None:
    for refusing in (ParquetSink, lambda url: ParquetBatchIOManager(base_dir=url)):
        if way_out == "Mount" and refusing is not ParquetSink:
            continue
        with pytest.raises(InvalidArgument, match=way_out):
            refusing(url)
