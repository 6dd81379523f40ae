"""Batches in a Delta table: each counts once, read by Delta's own library."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Field, Schema
from pyspark.sql import SparkSession

from pgque_dagster.client import BatchNotOpen, Client, InvalidArgument
from pgque_dagster.spark import DeltaSink, SparkBatch
from pgque_dagster.spark.sinks.delta_output import DeltaOutput
from pgque_dagster.spark.sinks.storage import StorageFailed
from pgque_dagster.spark.sinks.tables import BatchIdentity
from tests.support.attempts import again, next_batch, once_before_the_swap, results_of_swaps
from tests.support.delta_tables import rows
from tests.support.events import claim
from tests.support.s3 import S3

SCHEMA = "number bigint, name string"


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(tmp_path / "table")


def test_a_batch_is_rows_of_one_commit_with_its_id(
    client: Client, spark: SparkSession, location: str
) -> None:
    batch = next_batch(client, spark, [{"number": 1, "name": "a"}, {"number": 2, "name": "b"}])

    stored = DeltaSink(location).write(batch, batch.payload(SCHEMA))

    assert rows(location) == [(1, "a", batch.batch_id), (2, "b", batch.batch_id)]
    assert stored.rows == 2
    assert stored.version == DeltaTable(location).version()
    record = DeltaTable(location).history(1)[0]["pgque"]
    assert f"/orders/revenue/{batch.batch_id}" in record["app_id"]
    assert DeltaTable(location).transaction_version(record["app_id"]) == batch.claim.lease.epoch


def test_another_attempt_replaces_the_rows_in_the_same_commit(
    client: Client, spark: SparkSession, location: str
) -> None:
    sink = DeltaSink(location)
    first = next_batch(client, spark, [{"number": n, "name": "x"} for n in range(9)])
    before = sink.write(first, first.payload(SCHEMA)).version
    second = again(client, spark, first)

    after = sink.write(second, second.payload(SCHEMA).where("number < 5")).version

    assert after == before + 1
    assert [row[0] for row in rows(location)] == list(range(5))


def test_an_attempt_without_rows_is_published_as_well(
    client: Client, spark: SparkSession, location: str
) -> None:
    sink = DeltaSink(location)
    first = next_batch(client, spark, [{"number": 1, "name": "x"}])
    before = sink.write(first, first.payload(SCHEMA)).version
    second = again(client, spark, first)

    after = sink.write(second, second.payload(SCHEMA).where("false"))

    assert (after.version, after.rows) == (before + 1, 0)
    assert rows(location) == []


def test_a_stale_attempt_that_read_the_table_before_the_other_committed_cannot_commit(
    client: Client,
    spark: SparkSession,
    location: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink = DeltaSink(location)
    stale = next_batch(client, spark, [{"number": n, "name": "x"} for n in range(9)])

    def taken_over() -> None:
        later = again(client, spark, stale)
        sink.write(later, later.payload(SCHEMA))
        later.claim.ack()

    # The stale attempt is behind its renewal, and goes on when the other one has acked.
    once_before_the_swap(monkeypatch, DeltaOutput, taken_over)
    with pytest.raises(BatchNotOpen):
        sink.write(stale, stale.payload(SCHEMA).where("number < 3"))

    assert [row[0] for row in rows(location)] == list(range(9))
    files = list(Path(location).rglob("data/*/*.parquet"))
    assert len(files) == len(DeltaTable(location).file_uris())


def test_two_batches_at_once_both_get_into_the_table(
    client: Client, spark: SparkSession, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.register_consumer("orders", "another")
    results = results_of_swaps(monkeypatch, DeltaOutput)
    sink = DeltaSink(location)
    first = next_batch(client, spark, [{"number": 1, "name": "x"}])
    second = SparkBatch(spark, claim(client, consumer="another"), client.url)

    once_before_the_swap(
        monkeypatch, DeltaOutput, lambda: sink.write(second, second.payload(SCHEMA))
    )
    sink.write(first, first.payload(SCHEMA))

    assert {row[2] for row in rows(location)} == {first.batch_id, second.batch_id}
    # The second's, and the first's, which Delta's library must not repeat by itself.
    assert results == [True, False, True]


def test_a_table_that_does_not_exist_is_not_maintained(location: str) -> None:
    sink = DeltaSink(location)
    for maintain in (sink.optimize, sink.vacuum):
        with pytest.raises(InvalidArgument) as refused:
            maintain()
        assert str(refused.value) == (
            f"there is no Delta table {location}. The first batch that is stored creates it."
        )


def test_rows_that_were_compacted_before_the_ack_are_replaced(
    client: Client, spark: SparkSession, location: str
) -> None:
    sink = DeltaSink(location)
    for number in range(3):
        acked = next_batch(client, spark, [{"number": number, "name": "acked"}])
        sink.write(acked, acked.payload(SCHEMA))
        acked.claim.ack()
    first = next_batch(client, spark, [{"number": 9, "name": "x"}, {"number": 10, "name": "x"}])
    sink.write(first, first.payload(SCHEMA))
    assert sink.optimize()["numFilesAdded"] == 1
    second = again(client, spark, first)

    sink.write(second, second.payload(SCHEMA).where("number = 10"))

    assert [row[0] for row in rows(location)] == [0, 1, 2, 10]


def test_a_write_by_the_same_claim_is_refused(
    client: Client, spark: SparkSession, location: str
) -> None:
    batch = next_batch(client, spark, [{"number": 1, "name": "x"}])
    DeltaSink(location).write(batch, batch.payload(SCHEMA))

    with pytest.raises(InvalidArgument, match="write them once"):
        DeltaSink(location).write(batch, batch.payload(SCHEMA))

    assert len(rows(location)) == 1


def test_a_table_of_another_lineage_is_refused(
    client: Client, spark: SparkSession, location: str
) -> None:
    sink = DeltaSink(location)
    batch = next_batch(client, spark, [{"number": 1, "name": "x"}])
    sink.write(batch, batch.payload(SCHEMA))
    adopt(location, "an-earlier-life")
    later = again(client, spark, batch)

    with pytest.raises(InvalidArgument, match=r"lineage an-earlier-life.*Store into another table"):
        sink.write(later, later.payload(SCHEMA))

    assert len(rows(location)) == 1


def test_a_table_of_somebody_else_is_refused_until_it_is_adopted(
    client: Client, spark: SparkSession, location: str
) -> None:
    DeltaTable.create(location, schema=delta_schema("number long, name string, batch_id long"))
    sink = DeltaSink(location)
    batch = next_batch(client, spark, [{"number": 1, "name": "x"}])

    with pytest.raises(InvalidArgument, match=r"adopt it: DeltaTable\(") as told:
        sink.write(batch, batch.payload(SCHEMA))
    statement = str(told.value).partition("adopt it: ")[2].rstrip(".")
    eval(statement, {"DeltaTable": DeltaTable})

    sink.write(batch, batch.payload(SCHEMA))
    assert len(rows(location)) == 1


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ("number", r"has no column name, which Delta table"),
        ("number, name, 1 as more", r"has no column more. .*add_columns"),
        ("cast(number as int) as number, name", r"column number of .* is long, .* is integer"),
        ("number, name as Name", r"has the column name, and the DataFrame has Name"),
        ("number, name, 2L as Batch_Id", "the column Batch_Id is the sink's own"),
        ("number, interval '1' day as name", "column name is interval day, which Delta files"),
    ],
)
def test_columns_that_do_not_fit_the_table_are_refused_before_anything_is_written(
    client: Client, spark: SparkSession, location: str, columns: str, told: str
) -> None:
    sink = DeltaSink(location)
    first = next_batch(client, spark, [{"number": 1, "name": "x"}])
    sink.write(first, first.payload(SCHEMA))
    first.claim.ack()
    batch = next_batch(client, spark, [{"number": 2, "name": "x"}])

    with pytest.raises(InvalidArgument, match=told):
        sink.write(batch, batch.payload(SCHEMA).selectExpr(*columns.split(", ")))

    assert len(list(Path(location).rglob("*.parquet"))) == 1
    sink.write(batch, batch.payload(SCHEMA))
    assert [row[0] for row in rows(location)] == [1, 2]


def test_a_table_gets_columns_if_this_is_asked_for(
    client: Client, spark: SparkSession, location: str
) -> None:
    first = next_batch(client, spark, [{"number": 1, "name": "x"}])
    DeltaSink(location).write(first, first.payload(SCHEMA))
    first.claim.ack()
    batch = next_batch(client, spark, [{"number": 2, "name": "x"}])
    frame = batch.payload(SCHEMA).selectExpr("number", "array(named_struct('a', 1)) as more")

    DeltaSink(location, schema_evolution="add_columns").write(batch, frame)

    table = DeltaTable(location).to_pyarrow_table().sort_by("number").to_pylist()
    assert [(row["name"], row["more"]) for row in table] == [("x", None), (None, [{"a": 1}])]
    assert DeltaSink(location).read(spark).count() == 2


def test_nulls_in_a_column_that_is_not_null_are_refused(
    client: Client, spark: SparkSession, location: str
) -> None:
    fields = delta_schema("number long, name string, batch_id long", required="name")
    DeltaTable.create(location, schema=fields)
    batch = next_batch(client, spark, [{"number": 1, "name": None}])
    adopt(location, BatchIdentity.of(batch.claim).lineage)

    with pytest.raises(InvalidArgument, match=r"column name of .* is NOT NULL"):
        DeltaSink(location).write(batch, batch.payload(SCHEMA))

    assert rows(location) == []


def test_a_table_with_rules_that_nobody_would_check_is_refused(
    client: Client, spark: SparkSession, location: str
) -> None:
    sink = DeltaSink(location)
    first = next_batch(client, spark, [{"number": 1, "name": "x"}])
    sink.write(first, first.payload(SCHEMA))
    first.claim.ack()
    DeltaTable(location).alter.add_constraint({"positive": "number > 0"})
    batch = next_batch(client, spark, [{"number": -1, "name": "x"}])

    with pytest.raises(InvalidArgument, match=r"has delta.constraints.positive, which"):
        sink.write(batch, batch.payload(SCHEMA))


def test_a_table_that_takes_no_second_attempt_at_a_batch_is_refused(
    client: Client, spark: SparkSession, location: str
) -> None:
    sink = DeltaSink(location)
    batch = next_batch(client, spark, [{"number": 1, "name": "x"}])
    sink.write(batch, batch.payload(SCHEMA))
    DeltaTable(location).alter.set_table_properties({"delta.appendOnly": "true"})

    with pytest.raises(InvalidArgument, match=r"has delta.appendOnly, which"):
        sink.write(again(client, spark, batch), batch.payload(SCHEMA))


def test_a_table_that_is_deleted_meanwhile_is_an_error_and_the_next_attempt_succeeds(
    client: Client, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = str(tmp_path / "table")
    batch = next_batch(client, spark, [{"number": 1, "name": "x"}])

    once_before_the_swap(
        monkeypatch, DeltaOutput, lambda: Path(location, "_delta_log").rename(tmp_path / "gone")
    )
    with pytest.raises(StorageFailed, match=rf"{location}.*batch {batch.batch_id} of orders"):
        DeltaSink(location).write(batch, batch.payload(SCHEMA))

    later = again(client, spark, batch)
    DeltaSink(location).write(later, later.payload(SCHEMA))
    assert len(rows(location)) == 1


def test_vacuum_removes_what_killed_attempts_left(
    client: Client, spark: SparkSession, location: str
) -> None:
    batch = next_batch(client, spark, [{"number": 1, "name": "x"}])
    sink = DeltaSink(location)
    sink.write(batch, batch.payload(SCHEMA))
    (stored,) = Path(location).rglob("data/*/*.parquet")
    left = stored.parent.with_name(f"1-1-{32 * 'f'}") / stored.name
    left.parent.mkdir()
    left.write_bytes(stored.read_bytes())
    os.utime(left, (time.time() - 8 * 86400,) * 2)

    sink.vacuum()

    assert not left.exists()
    assert len(rows(location)) == 1


def test_a_table_in_an_object_store(client: Client, spark: SparkSession, s3: S3) -> None:
    sink = DeltaSink(s3.url("delta"), storage_options=s3.options)
    first = next_batch(client, spark, [{"number": n, "name": "x"} for n in range(9)])
    sink.write(first, first.payload(SCHEMA))
    second = again(client, spark, first)

    sink.write(second, second.payload(SCHEMA).where("number < 5"))

    options = {**s3.options, "aws_allow_http": "true"}
    table = DeltaTable(s3.url("delta"), storage_options=options).to_pyarrow_table()
    assert sorted(table["number"].to_pylist()) == list(range(5))


def test_a_bucket_that_is_missing_is_an_error_without_secrets(
    client: Client, spark: SparkSession, s3: S3
) -> None:
    batch = next_batch(client, spark, [{"number": 1, "name": "x"}])

    with pytest.raises(StorageFailed, match=r"s3://missing/t.*batch \d+ of orders") as told:
        DeltaSink("s3://missing/t", storage_options=s3.options).write(batch, batch.payload(SCHEMA))

    assert s3.secret not in str(told.value)


def test_readers_skip_files_by_statistics(
    client: Client, spark: SparkSession, location: str
) -> None:
    batch = next_batch(client, spark, [{"number": n, "name": "x"} for n in (3, 7)])
    frame = batch.payload(SCHEMA).selectExpr(
        "number",
        "name",
        "timestamp_seconds(number) as at",
        "date_from_unix_date(number) as day",
        "if(number = 3, double('NaN'), 1D) as double",
        "cast(number as decimal(5, 2)) as decimal",
        "nullif(number, 3) as nullable",
        "array(number) as nested",
    )

    DeltaSink(location).write(batch, frame.coalesce(1))

    (log,) = Path(location, "_delta_log").glob("*1.json")
    (added,) = [each["add"] for each in map(json.loads, log.open()) if "add" in each]
    statistics = json.loads(added["stats"])
    assert statistics["numRecords"] == 2
    assert statistics["minValues"]["number"] == 3
    assert statistics["maxValues"]["at"] == "1970-01-01T00:00:07.000000Z"
    assert statistics["maxValues"]["day"] == "1970-01-08"
    assert statistics["nullCount"]["nullable"] == 1
    assert "nested" not in statistics["nullCount"]
    scan = DeltaTable(location).to_pyarrow_table(filters=[("number", ">", 5)])
    assert scan["number"].to_pylist() == [7]


def test_spark_reads_the_table_with_its_types(
    client: Client, spark: SparkSession, location: str
) -> None:
    batch = next_batch(client, spark, [{"number": 3, "name": "x"}])
    frame = batch.payload(SCHEMA).selectExpr(
        "number",
        "cast(number as tinyint) as tiny",
        "cast(number as decimal(38, 10)) as decimal",
        "timestamp_ntz'2024-01-01 00:00:00' as ntz",
        "map('a', array(X'00')) as nested",
    )
    DeltaSink(location).write(batch, frame)

    read = DeltaSink(location).read(spark)

    assert read.drop("batch_id").schema.simpleString() == frame.schema.simpleString()
    assert read.drop("batch_id").collect() == frame.collect()


def adopt(location: str, lineage: str) -> None:
    DeltaTable(location).alter.set_table_properties(
        {"pgque.lineage": lineage}, raise_if_not_exists=False
    )


def delta_schema(columns: str, required: str = "") -> Any:
    pairs = (column.split() for column in columns.split(", "))
    return Schema([Field(name, kind, nullable=name != required) for name, kind in pairs])
