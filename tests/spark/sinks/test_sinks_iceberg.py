"""Batches in an Iceberg table: each counts once, read by pyiceberg."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from pgque_dagster.client import BatchNotOpen, Client, InvalidArgument
from pgque_dagster.spark import IcebergSink, SparkBatch
from pgque_dagster.spark.sinks.iceberg_output import IcebergOutput
from pgque_dagster.spark.sinks.storage import StorageFailed
from pgque_dagster.spark.sinks.tables import BatchIdentity
from tests.support.attempts import again, next_batch, once_before_the_swap, results_of_swaps
from tests.support.events import claim
from tests.support.s3 import S3
from tests.support.stored_tables import iceberg_catalog

SCHEMA = "number bigint, name string"
TABLE = "sales.revenue"

Sink = Callable[..., IcebergSink]


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    def new(**options: Any) -> IcebergSink:
        return IcebergSink(TABLE, warehouse=tmp_path / "warehouse", **options)

    return new


def test_a_batch_is_rows_of_one_snapshot_with_its_id(
    client: Client, spark: SparkSession, sink: Sink
) -> None:
    batch = next_batch(client, spark, [{"number": 1, "name": "a"}, {"number": 2, "name": "b"}])

    stored = sink().write(batch, batch.payload(SCHEMA))

    assert rows(client) == [(1, "a", batch.batch_id), (2, "b", batch.batch_id)]
    snapshot = table(client).current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    assert (stored.version, stored.rows) == (snapshot.snapshot_id, 2)
    properties = snapshot.summary.additional_properties
    assert properties["pgque.batch"].endswith(f"/orders/revenue/{batch.batch_id}")
    assert properties["pgque.epoch"] == str(batch.claim.lease.epoch)


def test_another_attempt_replaces_the_rows_in_the_same_commit(
    client: Client, spark: SparkSession, sink: Sink
) -> None:
    first = next_batch(client, spark, [{"number": n, "name": "x"} for n in range(9)])
    sink().write(first, first.payload(SCHEMA))
    before = table(client).metadata_location
    second = again(client, spark, first)

    sink().write(second, second.payload(SCHEMA).where("number < 5"))

    after = table(client)
    assert [log.metadata_file for log in after.metadata.metadata_log][-1] == before
    assert [row[0] for row in rows(client)] == list(range(5))


def test_an_attempt_without_rows_is_published_as_well(
    client: Client, spark: SparkSession, sink: Sink
) -> None:
    first = next_batch(client, spark, [{"number": 1, "name": "x"}])
    before = sink().write(first, first.payload(SCHEMA))
    second = again(client, spark, first)

    after = sink().write(second, second.payload(SCHEMA).where("false"))

    assert after.version != before.version
    assert after.rows == 0
    assert rows(client) == []


def test_a_stale_attempt_that_read_the_table_before_the_other_committed_cannot_commit(
    client: Client, spark: SparkSession, sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = next_batch(client, spark, [{"number": n, "name": "x"} for n in range(9)])

    def taken_over() -> None:
        later = again(client, spark, stale)
        sink().write(later, later.payload(SCHEMA))
        later.claim.ack()

    once_before_the_swap(monkeypatch, IcebergOutput, taken_over)
    with pytest.raises(BatchNotOpen):
        sink().write(stale, stale.payload(SCHEMA).where("number < 3"))

    assert [row[0] for row in rows(client)] == list(range(9))
    assert {Path(path) for path in paths(client)} == set(tmp_path.rglob("data/*/*.parquet"))


def test_two_batches_at_once_both_get_into_the_table(
    client: Client, spark: SparkSession, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.register_consumer("orders", "another")
    results = results_of_swaps(monkeypatch, IcebergOutput)
    first = next_batch(client, spark, [{"number": 1, "name": "x"}])
    second = SparkBatch(spark, claim(client, consumer="another"), client.url)

    once_before_the_swap(
        monkeypatch, IcebergOutput, lambda: sink().write(second, second.payload(SCHEMA))
    )
    sink().write(first, first.payload(SCHEMA))

    assert {row[2] for row in rows(client)} == {first.batch_id, second.batch_id}
    # The second's, and the first's, which pyiceberg must not repeat by itself.
    assert results == [True, False, True]


def test_rows_that_were_compacted_before_the_ack_are_replaced(
    client: Client, spark: SparkSession, sink: Sink
) -> None:
    acked = next_batch(client, spark, [{"number": 1, "name": "acked"}])
    sink().write(acked, acked.payload(SCHEMA))
    acked.claim.ack()
    first = next_batch(client, spark, [{"number": 2, "name": "x"}, {"number": 3, "name": "x"}])
    sink().write(first, first.payload(SCHEMA))
    compact(client)
    second = again(client, spark, first)

    sink().write(second, second.payload(SCHEMA).where("number = 3"))

    assert [row[0] for row in rows(client)] == [1, 3]


def test_rows_of_an_attempt_whose_snapshot_expired_are_replaced(
    client: Client, spark: SparkSession, sink: Sink
) -> None:
    first = next_batch(client, spark, [{"number": 2, "name": "x"}, {"number": 3, "name": "x"}])
    sink().write(first, first.payload(SCHEMA))
    old = table(client).current_snapshot()
    table(client).append(pa.table({"number": [9], "name": ["y"], "batch_id": [0]}))
    assert old is not None
    table(client).maintenance.expire_snapshots().by_id(old.snapshot_id).commit()
    second = again(client, spark, first)

    sink().write(second, second.payload(SCHEMA).where("number = 3"))

    assert [row[0] for row in rows(client)] == [3, 9]


def test_a_write_by_the_same_claim_is_refused(
    client: Client, spark: SparkSession, sink: Sink
) -> None:
    batch = next_batch(client, spark, [{"number": 1, "name": "x"}])
    sink().write(batch, batch.payload(SCHEMA))

    with pytest.raises(InvalidArgument, match="write them once"):
        sink().write(batch, batch.payload(SCHEMA))

    assert len(rows(client)) == 1


def test_a_table_of_another_lineage_is_refused_until_it_is_adopted(
    client: Client, spark: SparkSession, sink: Sink
) -> None:
    batch = next_batch(client, spark, [{"number": 1, "name": "x"}])
    sink().write(batch, batch.payload(SCHEMA))
    batch.claim.ack()
    adopt(client, "an-earlier-life")
    later = next_batch(client, spark, [{"number": 2, "name": "x"}])

    with pytest.raises(InvalidArgument, match=r"lineage an-earlier-life.*Store into another table"):
        sink().write(later, later.payload(SCHEMA))

    assert len(rows(client)) == 1
    adopt(client, BatchIdentity.of(later.claim).lineage)
    sink().write(later, later.payload(SCHEMA))
    assert len(rows(client)) == 2


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ("number", r"has no column name, which Iceberg table"),
        ("number, name, 1 as more", r"has no column more. .*add_columns"),
        ("cast(number as int) as number, name", r"column number of .* is int64, .* is int32"),
        ("number, name as Name", r"has the column name, and the DataFrame has Name"),
        ("number, cast(1 as tinyint) as name", "column name is tinyint.*Cast name to int"),
    ],
)
def test_columns_that_do_not_fit_the_table_are_refused_before_anything_is_written(
    client: Client, spark: SparkSession, sink: Sink, tmp_path: Path, columns: str, told: str
) -> None:
    first = next_batch(client, spark, [{"number": 1, "name": "x"}])
    sink().write(first, first.payload(SCHEMA))
    first.claim.ack()
    batch = next_batch(client, spark, [{"number": 2, "name": "x"}])

    with pytest.raises(InvalidArgument, match=told):
        sink().write(batch, batch.payload(SCHEMA).selectExpr(*columns.split(", ")))

    assert len(list(tmp_path.rglob("*.parquet"))) == 1
    sink().write(batch, batch.payload(SCHEMA))
    assert [row[0] for row in rows(client)] == [1, 2]


def test_a_table_gets_columns_if_this_is_asked_for(
    client: Client, spark: SparkSession, sink: Sink
) -> None:
    first = next_batch(client, spark, [{"number": 1, "name": "x"}])
    sink().write(first, first.payload(SCHEMA))
    first.claim.ack()
    batch = next_batch(client, spark, [{"number": 2, "name": "x"}])
    frame = batch.payload(SCHEMA).selectExpr("number", "array(named_struct('a', 1)) as more")

    sink(schema_evolution="add_columns").write(batch, frame)

    stored = table(client).scan().to_arrow().sort_by("number").to_pylist()
    assert [(row["name"], row["more"]) for row in stored] == [("x", None), (None, [{"a": 1}])]
    assert sink().read(spark, client.url).count() == 2


def test_types_arrive_exactly(client: Client, spark: SparkSession, sink: Sink) -> None:
    batch = next_batch(client, spark, [{"number": 3, "name": "x"}])
    frame = batch.payload(SCHEMA).selectExpr(
        "number",
        "cast(number as decimal(38, 10)) as decimal",
        "timestamp_micros(1) as at",
        "timestamp_ntz'2024-01-01 00:00:00' as ntz",
        "date'1582-10-10' as day",
        "X'00ff' as binary",
        "map('a', array(named_struct('b', 1.5F))) as nested",
    )
    sink().write(batch, frame)

    read = sink().read(spark, client.url).drop("batch_id")

    assert read.schema.simpleString() == frame.schema.simpleString()
    assert read.collect() == frame.collect()
    (row,) = table(client).scan().to_arrow().to_pylist()
    assert row["nested"] == [("a", [{"b": 1.5}])]
    assert row["binary"] == b"\x00\xff"


def test_readers_skip_files_by_statistics(client: Client, spark: SparkSession, sink: Sink) -> None:
    batch = next_batch(client, spark, [{"number": n, "name": "x"} for n in (3, 7)])
    sink().write(batch, batch.payload(SCHEMA).coalesce(1))

    assert list(table(client).scan("number > 9").plan_files()) == []
    assert len(list(table(client).scan("number > 5").plan_files())) == 1


def test_a_table_that_is_deleted_meanwhile_is_an_error_and_the_next_attempt_succeeds(
    client: Client, spark: SparkSession, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = next_batch(client, spark, [{"number": 1, "name": "x"}])

    once_before_the_swap(monkeypatch, IcebergOutput, lambda: catalog(client).drop_table(TABLE))
    with pytest.raises(StorageFailed, match=rf"{TABLE}.*batch {batch.batch_id} of orders"):
        sink().write(batch, batch.payload(SCHEMA))

    later = again(client, spark, batch)
    sink().write(later, later.payload(SCHEMA))
    assert len(rows(client)) == 1


def test_a_table_in_an_object_store(client: Client, spark: SparkSession, s3: S3) -> None:
    sink = IcebergSink(TABLE, warehouse=s3.url("iceberg"), storage_options=s3.options)
    first = next_batch(client, spark, [{"number": n, "name": "x"} for n in range(9)])
    sink.write(first, first.payload(SCHEMA))
    second = again(client, spark, first)

    sink.write(second, second.payload(SCHEMA).where("number < 5"))

    assert [row[0] for row in rows(client, **s3.iceberg_properties)] == list(range(5))
    names = s3.names("iceberg/")
    assert names
    for name in names:
        body = s3.client.get_object(Bucket="lake", Key=name)["Body"].read()
        assert s3.secret.encode() not in body


def rows(client: Client, **properties: str) -> list[tuple[Any, ...]]:
    found = catalog(client, **properties).load_table(TABLE).scan().to_arrow()
    return sorted(
        zip(*(found[name].to_pylist() for name in ("number", "name", "batch_id")), strict=True)
    )


def paths(client: Client) -> list[str]:
    found = (task.file.file_path for task in table(client).scan().plan_files())
    return [path.removeprefix("file://") for path in found]


def table(client: Client) -> Any:
    return catalog(client).load_table(TABLE)


def catalog(client: Client, **properties: str) -> Catalog:
    return iceberg_catalog(client.url, **properties)


def adopt(client: Client, lineage: str) -> None:
    with table(client).transaction() as change:
        change.set_properties({"pgque.lineage": lineage})


def compact(client: Client) -> None:
    """Writes all rows into one file, as programs do that maintain tables."""
    stored = table(client)
    stored.overwrite(stored.scan().to_arrow())
