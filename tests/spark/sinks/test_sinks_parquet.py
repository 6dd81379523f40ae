"""Batches as Parquet in a directory: each once, however often it is written."""

import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from pgque_dagster import ParquetBatchIOManager
from pgque_dagster.client import Batch, BatchNotOpen, Client, InvalidArgument, LeaseLost
from pgque_dagster.spark import ParquetSink, SparkBatch
from pgque_dagster.spark.sinks.files.record import check_not_united, incarnations, mark
from tests.support.queues.events import claim, publish
from tests.support.spark.directories import Place, everything, names


def overtaken_when_it_has_files(
    monkeypatch: pytest.MonkeyPatch, late: Batch, directory: Place, overtake: Callable[[], object]
) -> None:
    """Has something done once an attempt has files, when it asks for its lease."""
    renew, overtakers = late.renew, [overtake]

    def renewing() -> None:
        if overtakers and any(directory.aside.rglob("*.parquet")):
            overtakers.pop()()
        renew()

    monkeypatch.setattr(late, "renew", renewing)


def test_what_earlier_versions_united_is_read_and_its_batches_are_not_stored_again(
    client: Client, directory: Place
) -> None:
    united, under_way = (
        Path(directory.location, "united-1"),
        Path(directory.location, "gathering-2"),
    )
    ids = [directory.store(client, rows).batch_id for rows in (1, 2, 3)]
    for batch_id, folder in zip(ids, (united / "rows", united / "rows", under_way), strict=True):
        folder.mkdir(parents=True, exist_ok=True)
        Path(directory.location, f"batch-{batch_id}").rename(folder / f"batch-{batch_id}")
    (united / "rows" / f"batch-{ids[0]}").rename(united / "rows" / "part-0")
    (united / f"_batches-{ids[0]}-{ids[0]}").write_text(json.dumps([ids[0]]))
    new = directory.store(client, 1).batch_id

    def read(**wanted: Any) -> list[tuple[int, int]]:
        table = directory.sink.read(directory.spark, **wanted)
        return sorted((row.batch_id, row.id) for row in table.collect())

    assert read() == sorted(
        [(ids[0], 0), *((ids[1], n) for n in range(2)), *((ids[2], n) for n in range(3)), (new, 0)]
    )
    assert read(batches=[ids[1], new]) == [(ids[1], 0), (ids[1], 1), (new, 0)]
    empty = directory.store(client, 0).batch_id
    assert read(batches=[]) == read(batches=[empty]) == []
    for batch_id in ids:
        with pytest.raises(InvalidArgument, match=f"batch {batch_id} was finished"):
            check_not_united(Path(directory.location), batch_id)
    check_not_united(Path(directory.location), new)


def test_an_attempt_that_is_overtaken_while_it_writes_leaves_no_rows(
    client: Client, directory: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(client, ["a"])
    late = claim(client)
    overtaken_when_it_has_files(
        monkeypatch, late, directory, lambda: directory.attempt(client, 2).ack()
    )

    with pytest.raises(BatchNotOpen):
        directory.write(late, 3)

    assert [number for _, number in directory.rows()] == [0, 1]
    assert len(directory.files()) == len(directory.visible())


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
    assert names(f"{directory.location}/batch-{first}") == ["publication-1"]


def test_what_killed_attempts_left_is_not_read_and_goes_with_the_next(
    client: Client, directory: Place
) -> None:
    publish(client, ["a"])
    spark, location = directory.spark, directory.location
    folder = Path(location, f"batch-{directory.attempt(client, 2).batch_id}")
    aside = directory.aside / folder.name
    for name in (".writing-1.a", ".trash-c", ".writing-9.d"):
        spark.range(7).write.parquet(str(aside / name))
    assert everything(spark, location).count() == 2

    directory.attempt(client, 3)

    assert everything(spark, location).count() == 3
    assert names(folder) == ["publication-1", "publication-2"]
    assert names(aside) == [".writing-9.d"]
    assert list((folder / "publication-1").rglob("*.parquet")) == []


def test_a_plain_pattern_finds_exactly_what_is_published_at_any_moment(
    client: Client, directory: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> list[tuple[int, int]]:
        files = f"{directory.location}/**/*.parquet"
        rows = duckdb.read_parquet(files)
        return sorted(rows.project("batch_id, id").fetchall())

    first = directory.store(client, 1)
    publish(client, ["b"])
    second = directory.attempt(client, 3)
    second.release()
    late, seen = claim(client), []
    overtaken_when_it_has_files(monkeypatch, late, directory, lambda: seen.append(found()))
    of_first, of_second = [(first.batch_id, 0)], [(second.batch_id, n) for n in range(3)]

    directory.write(late, 2)

    assert seen == [of_first + of_second]
    assert found() == of_first + of_second[:2]
    table = pd.read_parquet(directory.location)
    assert sorted(zip(table["batch_id"].astype(int), table["id"], strict=True)) == found()


def test_a_claim_writes_its_batch_to_a_location_once(client: Client, directory: Place) -> None:
    publish(client, ["a"])
    claimed = claim(client)
    batch = SparkBatch(directory.spark, claimed, client.url)
    directory.sink.write(batch, directory.spark.range(2))

    for again in (batch, SparkBatch(directory.spark, claimed, client.url)):
        with pytest.raises(InvalidArgument, match="write them once"):
            directory.sink.write(again, directory.spark.range(2))

    assert len(directory.rows()) == 2


def test_a_column_batch_id_is_refused(client: Client, directory: Place) -> None:
    publish(client, ["a"])
    for name in ("batch_id", "Batch_Id"):
        with pytest.raises(InvalidArgument, match=f"column {name} is the sink's own"):
            directory.attempt(client, directory.spark.range(1).withColumnRenamed("id", name))


# Whose batches a directory holds, and where one may be.


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


def test_a_location_may_have_a_name_that_means_something_to_readers(
    client: Client, directory: Place
) -> None:
    place = directory.at("a?b/a*/a\\b/o[1]/{a,b}/region=eu")

    batch = place.store(client, 1)

    read = place.sink.read(place.spark)
    assert read.columns == ["id", "batch_id"]
    assert [tuple(row) for row in read.collect()] == [(0, batch.batch_id)]


def test_a_file_url_is_a_directory(client: Client, spark: SparkSession, tmp_path: Path) -> None:
    Place(spark, f"file://{tmp_path}/table").store(client, 2)

    assert sorted(row.id for row in everything(spark, tmp_path / "table").collect()) == [0, 1]
    assert ParquetSink(f"file:{tmp_path}/table").location == str(tmp_path / "table")


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
