"""A function over rows that tasks read runs where they are read, and gets the same rows."""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from pgque_dagster.client import Client
from pgque_dagster.spark import SparkBatch
from pgque_dagster.spark import batch as batch_module
from pgque_dagster.spark.reading.in_tasks import as_types, map_in_tasks, read_in_tasks
from pgque_dagster.spark.sinks.files.data_files import write_files
from pgque_dagster.spark.sinks.files.storage import Storage
from tests.support.queues.events import claim, publish

PAYLOAD = """{
"integer": -7, "text": "täxt", "exact": 1.10, "at": "2024-03-31T01:30:00.5+05:00",
"local": "2024-03-31T02:30:00", "day": "9999-12-31", "flag": false, "raw": "AP8=",
"list": [1, null], "map": {"a": 1.5}, "struct": {"a": 1, "b": [{"c": "x"}]}}"""
SCHEMA = """
integer int, text string, exact decimal(5, 2), at timestamp, local timestamp_ntz, day date,
flag boolean, raw binary, list array<bigint>, map map<string, double>,
struct struct<a: bigint, b: array<struct<c: string>>>, missing string
"""


@pytest.fixture
def reads(tmp_path: Path) -> Callable[[], int]:
    """How often a part was read."""
    return lambda: len((tmp_path / "reads").read_text())


@pytest.fixture
def frame(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """The numbers 0 to 3, read in two tasks."""
    note = str(tmp_path / "reads")

    def read(part: int) -> Iterator[pa.RecordBatch]:
        with Path(note).open("a") as file:
            file.write("x")
        for nr in (0, 1):
            yield pa.record_batch({"number": pa.array([2 * part + nr], pa.int64())})

    return read_in_tasks(spark, [0, 1], read, spark.range(1).toDF("number").schema)


def sums(frame: DataFrame) -> list[int]:
    """The sums of the partitions."""

    def add(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        total = sum(sum(batch.column("number").to_pylist()) for batch in batches)
        yield pa.record_batch({"sum": pa.array([total], pa.int64())})

    return sorted(row["sum"] for row in map_in_tasks(frame, add, "sum bigint").collect())


def test_a_function_gets_the_rows_of_each_part_as_they_were_read(frame: DataFrame) -> None:
    def size(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"rows": pa.array([batch.num_rows], pa.int64())})

    assert sums(frame) == [1, 5]
    # Spark would send the two of a partition together.
    assert [row["rows"] for row in map_in_tasks(frame, size, "rows bigint").collect()] == [1] * 4


def test_columns_are_cast_where_rows_are_read(frame: DataFrame) -> None:
    columns = t.StructType().add("number", t.IntegerType()).add("more", t.LongType())

    def kinds(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            assert batch.schema.types[1] == pa.int64()
            assert batch["more"].null_count == batch.num_rows
            yield pa.record_batch({"kind": [f"{batch.schema.types[0]} {batch.num_rows}"]})

    for given, sizes in ((frame, [1] * 4), (frame.where("number >= 0"), [2] * 2)):
        cast = as_types(given, columns)
        assert cast.dtypes == [("number", "int"), ("more", "bigint")]
        assert sorted(row["number"] for row in cast.collect()) == [0, 1, 2, 3]
        found = [row["kind"] for row in map_in_tasks(cast, kinds, "kind string").collect()]
        assert found == [f"int32 {size}" for size in sizes]


def test_rows_that_were_changed_are_those_that_spark_has(frame: DataFrame) -> None:
    assert sums(frame.where("number > 0")) == [1, 5]
    assert sums(frame.selectExpr("number + 1 as number")) == [3, 7]
    assert sums(frame.coalesce(1)) == [6]


def test_a_persisted_frame_is_not_read_again(frame: DataFrame, reads: Callable[[], int]) -> None:
    frame.persist().count()
    assert sums(frame) == [1, 5]
    assert reads() == 2
    frame.unpersist()
    assert sums(frame) == [1, 5]
    assert reads() == 4


def test_files_of_payloads_hold_what_spark_would_write_into_them(
    client: Client, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_module, "DRIVER_SIDE_EVENTS", -1)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    publish(client, [PAYLOAD, "{}"])
    batch = SparkBatch(spark, claim(client), client.url, slices=1)
    rows = batch.payload(SCHEMA, keep=["ev_id", "ev_time"])
    storage = Storage.of(tmp_path)
    (direct,) = write_files(rows, storage, "direct", batch_id=1)
    (by_spark,) = write_files(rows.select("*"), storage, "by_spark", batch_id=1)
    found, wanted = (pq.read_table(tmp_path / file.path) for file in (direct, by_spark))
    assert found.schema.equals(wanted.schema, check_metadata=True)
    assert found.equals(wanted)
    assert found.num_rows == 2
    spark.conf.unset("spark.sql.session.timeZone")


def test_modules_are_not_searched_for_garbage_after_each_task(frame: DataFrame) -> None:
    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.record_batch({"frozen": pa.array([gc.get_freeze_count()], pa.int64())})

    found = map_in_tasks(frame, count, "frozen bigint").collect()
    assert all(row["frozen"] > 10_000 for row in found)
