"""A directory of Parquet is one table to all its readers, and on the disk before the ack."""

import os
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster.client import Batch, Client, InvalidArgument
from pgque_dagster.spark import ParquetSink, SparkBatch
from pgque_dagster.spark.sinks.files.folders import FolderOutput, FolderState
from pgque_dagster.spark.sinks.files.storage import Storage
from tests.support.queues.events import claim, make_queue, publish
from tests.support.runner.calls import at_call

# The years that nanoseconds since 1970 do not reach.
OLD = (date(1, 1, 3) - date(1970, 1, 1)).days * 86_400_000_000
COLUMNS = {
    "id": "id",
    "name": "'tea'",
    "price": "cast(1.23 as decimal(10, 2))",
    "parts": "struct(1 as x, array(2) as y)",
    "at": "timestamp'0001-01-03 00:00:00Z'",
}
# The columns that differ from the table's, and what the error says of them.
REFUSED = {
    "a column more": ({"more": "1"}, "more is missing there, int here"),
    "a column less": ({"name": None}, "name is string there, missing here"),
    "another case": ({"name": None, "Name": "'tea'"}, "Name is missing there, string here"),
    "a wider number": ({"id": "cast(id as decimal(20))"}, "id is bigint there, decimal(20,0) here"),
    "a narrower number": ({"id": "cast(id as int)"}, "id is bigint there, int here"),
    "text for a number": ({"id": "cast(id as string)"}, "id is bigint there, string here"),
    "another scale": (
        {"price": "cast(1.23 as decimal(10, 4))"},
        "price is decimal(10,2) there, decimal(10,4) here",
    ),
    "a field more": (
        {"parts": "struct(1 as x, array(2) as y, 3 as z)"},
        "there, struct<x:int,y:array<int>,z:int> here",
    ),
    "fields in another order": ({"parts": "struct(array(2) as y, 1 as x)"}, "parts is struct<x"),
    "another element": ({"parts": "struct(1 as x, array(2L) as y)"}, "y:array<bigint>"),
    "a time without zone": (
        {"at": "timestamp_ntz'0001-01-03 00:00:00'"},
        "at is timestamp there, timestamp_ntz here",
    ),
}  # fmt: skip
# What may differ, and what the row then has: readers find columns by their names, and take any of
# them for nullable.
ROW = {"id": 0, "name": "tea", "price": Decimal("1.23"), "parts": {"x": 1, "y": [2]}, "at": OLD}
TAKEN = [
    ({}, ROW),
    ({"id": "if(id = 0, null, id)"}, {**ROW, "id": None}),
    ({"parts": "if(id = 0, null, struct(1 as x, array(2) as y))"}, {**ROW, "parts": None}),
    (dict.fromkeys(COLUMNS), ROW),
]


def frame(spark: SparkSession, changed: Mapping[str, str | None] = {}) -> DataFrame:
    """One row, with columns that differ from the table's, or all of them in another order."""
    columns = {**COLUMNS, **changed}
    if list(changed) == list(COLUMNS):
        columns = dict(reversed(COLUMNS.items()))
    return spark.range(1).selectExpr(*(f"{v} as {n}" for n, v in columns.items() if v is not None))


def by_spark(spark: SparkSession, table: Path) -> pa.Table:
    return spark.read.option("recursiveFileLookup", "true").parquet(str(table)).toArrow()


def by_arrow(_: SparkSession, table: Path) -> pa.Table:
    return ds.dataset(table, format="parquet").to_table()


def by_duckdb(_: SparkSession, table: Path) -> pa.Table:
    with duckdb.connect() as database:
        database.execute("set timezone = 'UTC'")
        return database.sql(f"from read_parquet('{table}/**/*.parquet')").to_arrow_table()


READERS = (by_spark, by_arrow, by_duckdb)


def shown(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(str([row[name] for name in COLUMNS]) for row in rows)


def store(client: Client, table: Path, rows: DataFrame, queue: str = "orders") -> Batch:
    """Stores a batch, and acks it."""
    publish(client, ["a"], queue)
    claimed = claim(client, queue)
    ParquetSink(table).write(SparkBatch(rows.sparkSession, claimed, client.url), rows)
    claimed.ack()
    return claimed


def test_readers_see_every_value_of_what_a_table_takes(
    client: Client, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for changed, _ in TAKEN:
        store(client, tmp_path / "table", frame(spark, changed))
    # This version has no option of a write for timestamps.
    monkeypatch.setattr(spark, "version", "4.1.0")
    store(client, tmp_path / "table", frame(spark))

    for reader in READERS:
        table = reader(spark, tmp_path / "table")
        at = table["at"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        table = table.set_column(table.column_names.index("at"), "at", at)
        assert shown(table.to_pylist()) == shown([*(row for _, row in TAKEN), ROW]), reader


def test_a_file_of_an_attempt_that_spark_did_not_accept_is_not_published(
    client: Client, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task leaves files where it writes, as an attempt does that ends before it reports."""
    monkeypatch.setattr(spark, "version", "4.1.0")
    aside = tmp_path / ".table.pgque"

    def leave_a_file(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for row in rows:
            for folder in (*aside.glob("*/.writing-*/epoch-*"), *aside.glob("*/.writing-*_tasks")):
                pq.write_table(pa.Table.from_batches([row]), folder / "part-left.parquet")
                (folder / "part-torn.parquet").touch()
            yield row

    rows = frame(spark)
    store(client, tmp_path / "table", rows.mapInArrow(leave_a_file, rows.schema))

    for reader in READERS:
        assert len(reader(spark, tmp_path / "table")) == 1, reader
    assert not list(aside.rglob("*"))


def test_columns_that_some_reader_would_not_see_are_refused_before_anything_is_written(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    store(client, tmp_path / "table", frame(spark))
    before = sorted(tmp_path.rglob("*"))
    not_refused = []
    for changed, told in REFUSED.values():
        try:
            store(client, tmp_path / "table", frame(spark, changed))
            not_refused.append(told)
        except InvalidArgument as error:
            assert told in str(error) and str(tmp_path / "table") in str(error)
            assert "store into another table" in str(error)

    assert not_refused == []
    assert sorted(tmp_path.rglob("*")) == before


def test_of_two_first_batches_at_once_the_one_with_other_columns_is_refused(
    client: Client, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_queue(client, "others")

    def overtake() -> None:
        store(client, tmp_path, spark.range(1), "others")

    at_call(monkeypatch, FolderOutput, "replace", overtake)

    with pytest.raises(InvalidArgument, match="id is bigint there, int here"):
        store(client, tmp_path, spark.range(1).selectExpr("cast(id as int) as id"))

    assert ParquetSink(tmp_path).read(spark).count() == 1


def test_a_first_batch_that_is_not_published_decides_no_columns(
    client: Client, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(client, ["a"])
    with monkeypatch.context() as patch, pytest.raises(ValueError, match="too many malformed"):
        failing = SparkBatch(spark, claim(client), client.url)
        patch.setattr(failing.claim, "run_checks", raising(ValueError("too many malformed")))
        ParquetSink(tmp_path).write(failing, spark.range(1))

    store(client, tmp_path, frame(spark))


def test_a_table_with_the_layout_of_an_earlier_version_is_refused(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    store(client, tmp_path, spark.range(1))
    spark.range(1).write.parquet(str(tmp_path / "batch_id=1"))

    for refused in (
        lambda: store(client, tmp_path, spark.range(1)),
        lambda: ParquetSink(tmp_path).read(spark),
    ):
        with pytest.raises(InvalidArgument, match="layout of an earlier version"):
            refused()


def test_a_batch_is_on_the_disk_before_it_is_published_and_acked(
    client: Client, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, replace = synced_paths(monkeypatch), FolderOutput.replace

    def replacing(output: FolderOutput, state: FolderState) -> bool:
        written = [path for path in output.writing.rglob("*") if path.name != "_taken"]
        assert {path.stat().st_ino for path in (*written, output.writing)} <= synced
        return replace(output, state)

    monkeypatch.setattr(FolderOutput, "replace", replacing)
    publish(client, ["a"])
    for count in (1, 2):
        batch = SparkBatch(spark, claim(client), client.url)
        synced.clear()
        ParquetSink(tmp_path / "new" / "table").write(batch, spark.range(count))

        table = tmp_path / "new" / "table"
        renamed = {*table.glob("batch-*"), *table.glob("batch-*/publication-1"), table}
        assert {path.stat().st_ino for path in renamed} <= synced, count
        if count == 1:
            recorded = {*(table / "_pgque").rglob("*"), table.parent, tmp_path}
            assert {path.stat().st_ino for path in recorded} <= synced


def test_a_file_that_a_task_wrote_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = synced_paths(monkeypatch)

    with Storage.of(tmp_path).create("data/part.parquet") as file:
        file.write(b"rows")

    paths = (tmp_path / "data", tmp_path / "data" / "part.parquet")
    assert {path.stat().st_ino for path in paths} <= synced


def synced_paths(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The numbers of the files and directories that this process syncs from now on."""
    fsync, synced = os.fsync, set()

    def noting(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", noting)
    return synced


def raising(error: Exception) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act
