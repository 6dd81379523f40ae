"""Batches as Parquet in a directory: each once, however often it is written."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from pgque_dagster.client import Batch, BatchNotOpen, Client, InvalidArgument, LeaseLost
from pgque_dagster.spark import SparkBatch
from pgque_dagster.spark.sinks.files.record import check_not_united
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

    assert directory.rows() == sorted(
        [(ids[0], 0), *((ids[1], n) for n in range(2)), *((ids[2], n) for n in range(3)), (new, 0)]
    )
    some = directory.sink.read(directory.spark, batches=[ids[1], new]).collect()
    assert sorted((row.batch_id, row.id) for row in some) == [(ids[1], 0), (ids[1], 1), (new, 0)]
    for batch_id in ids:
        with pytest.raises(InvalidArgument, match=f"batch {batch_id} was finished"):
            check_not_united(Path(directory.location), batch_id)
    check_not_united(Path(directory.location), new)


def test_all_batches_are_one_table_which_is_read_as_a_whole_or_by_their_ids(
    client: Client, directory: Place
) -> None:
    ids = [directory.store(client, rows).batch_id for rows in (1, 2, 0, 3)]

    def read(**wanted: Any) -> list[int]:
        table = directory.sink.read(directory.spark, **wanted)
        return sorted({row.batch_id for row in table.collect()})

    first, second, empty, last = ids
    assert directory.sink.read(directory.spark).columns == ["id", "batch_id"]
    assert directory.rows() == [
        *((first, 0), (second, 0), (second, 1)), *((last, n) for n in range(3))
    ]  # fmt: skip
    assert read(batches=[first, last]) == [first, last]
    assert read(batches=[]) == read(batches=[empty]) == []


def test_another_attempt_at_a_batch_replaces_what_was_stored_of_it(
    client: Client, directory: Place
) -> None:
    first = directory.store(client, 1)
    publish(client, ["b"])
    for rows in (3, 1):
        directory.attempt(client, rows).release()

    again = directory.attempt(client, 2)

    assert directory.rows() == [(first.batch_id, 0), (again.batch_id, 0), (again.batch_id, 1)]
    assert len(directory.files()) == len(directory.visible())


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
