"""Batches in a Delta or an Iceberg table: each counts once, read by the format's own library."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, Field, Schema
from pyiceberg.expressions import IsNull
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.transforms import DayTransform, IdentityTransform, Transform
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType
from pyspark.sql import SparkSession

from pgque_dagster.client import BatchNotOpen, Client, InvalidArgument
from pgque_dagster.spark import DeltaSink, IcebergSink, SparkBatch
from pgque_dagster.spark.sinks.files.storage import StorageFailed
from tests.support.queues.events import claim
from tests.support.runner.calls import at_call
from tests.support.servers.s3 import S3
from tests.support.spark.attempts import next_batch
from tests.support.spark.lakes import SCHEMA, TABLE, DeltaLake, IcebergLake, of_another
from tests.support.spark.stored_tables import iceberg_catalog


@pytest.fixture(params=[DeltaLake, IcebergLake], ids=["delta", "iceberg"])
def lake(
    request: pytest.FixtureRequest, client: Client, spark: SparkSession, tmp_path: Path
) -> Any:
    client.register_consumer("orders", "another")
    return request.param(client, spark, tmp_path)


def test_a_batch_is_rows_of_one_commit_with_its_id(lake: Any) -> None:
    batch = lake.batch(1, 2)

    stored = lake.write(batch)

    assert lake.rows() == [(1, "x", batch.batch_id), (2, "x", batch.batch_id)]
    assert stored.rows == 2
    name, epoch = f"/orders/revenue/{batch.batch_id}", batch.claim.lease.epoch
    if isinstance(lake, DeltaLake):
        assert stored.version == lake.table().version()
        app_id = lake.table().history(1)[0]["pgque"]["app_id"]
        assert name in app_id
        assert lake.table().transaction_version(app_id) == epoch
    else:
        snapshot = lake.table().current_snapshot()
        assert stored.version == snapshot.snapshot_id
        assert snapshot.summary["pgque.batch"].endswith(name)
        assert snapshot.summary["pgque.epoch"] == str(epoch)


def test_another_attempt_replaces_the_rows_in_the_same_commit_also_by_none(lake: Any) -> None:
    batch = lake.batch(*range(9))
    lake.write(batch)
    for where, numbers in (("number < 5", [0, 1, 2, 3, 4]), ("false", [])):
        batch, commits = lake.again(batch), lake.commits()

        assert lake.write(batch, where=where).rows == len(numbers)

        assert lake.commits() == commits + 1
        assert lake.numbers() == numbers


def test_a_stale_attempt_that_read_the_table_before_the_other_committed_cannot_commit(
    lake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = lake.batch(*range(9))

    # The stale attempt is behind its renewal, and goes on when the other one has acked.
    at_call(monkeypatch, lake.output, "replace", lambda: lake.take_over(stale))
    with pytest.raises(BatchNotOpen):
        lake.write(stale, where="number < 3")

    assert lake.numbers() == list(range(9))
    assert lake.files() == lake.counted()


def test_two_batches_at_once_both_get_into_the_table(
    lake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = lake.batch(1), of_another(lake)

    swaps = at_call(monkeypatch, lake.output, "replace", lambda: lake.write(second))
    lake.write(first)

    assert {row[2] for row in lake.rows()} == {first.batch_id, second.batch_id}
    # The first's, which the format's library must not repeat by itself, and the second's.
    assert swaps == [False, True, True]


def test_rows_that_were_united_before_the_ack_are_replaced(lake: Any) -> None:
    for number in range(2):
        lake.store(number)
    first = lake.batch(9, 10)
    lake.write(first)
    lake.compact()

    lake.write(lake.again(first), where="number = 10")

    assert lake.numbers() == [0, 1, 10]


def test_small_files_are_united_before_a_batch_is_committed(
    lake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.store(1)
    lake.store(2, schema_evolution="add_columns")
    batch = lake.batch(3)

    at_call(monkeypatch, lake.output, "replace", lake.compact)
    lake.write(batch)

    assert lake.numbers() == [1, 2, 3]
    assert len(lake.counted()) == 2
    lake.take_over(batch)
    lake.compact()
    assert (lake.numbers(), lake.read().count(), len(lake.counted())) == ([1, 2, 3], 3, 1)
    assert lake.sink().maintain(lake.spark, lake.client.url).by == 0


def test_a_time_that_readers_do_not_have_is_refused(lake: Any) -> None:
    batch = lake.batch(1)
    with pytest.raises(InvalidArgument, match=r"column day for .* outside the years 1 to 9999"):
        lake.write(batch, "number", "date'10000-01-01' as day")
    assert lake.files() == set()


def test_a_table_of_another_incarnation_is_refused_until_it_is_adopted(lake: Any) -> None:
    lake.store(1)
    lake.adopt("an-earlier-incarnation")
    later = lake.batch(2)

    with pytest.raises(
        InvalidArgument, match=r"incarnation an-earlier-incarnation.*Store into another table"
    ):
        lake.write(later)

    assert lake.numbers() == [1]
    lake.adopt(lake.client.incarnation())
    lake.write(later)
    assert lake.numbers() == [1, 2]


MISFITS = {
    "number": r"name is string there, missing here",
    "number, name, 1 as more": r"{table}.*more is missing there, int here.*add_columns",
    "number, name as Name": r"Name is missing there, string here",
    "cast(number as int) as number, name": r"number is bigint there, int here",
}
MISFITS_OF = {
    DeltaLake: {
        "number, name, 2L as Batch_Id": "the column Batch_Id is the sink's own",
        "number, interval '1' day as name": "column name is interval day, which Delta files",
    },
    IcebergLake: {"number, cast(1 as tinyint) as name": "column name is tinyint.*Cast name to int"},
}


def test_columns_that_do_not_fit_the_table_are_refused_before_anything_is_written(
    lake: Any,
) -> None:
    lake.store(1)
    batch = lake.batch(2)
    table = "Delta table" if isinstance(lake, DeltaLake) else "Iceberg table"

    for columns, told in {**MISFITS, **MISFITS_OF[type(lake)]}.items():
        with pytest.raises(InvalidArgument, match=told.format(table=table)):
            lake.write(batch, *columns.split(", "))

    assert len(lake.files()) == 1
    lake.write(batch)
    assert lake.numbers() == [1, 2]


def test_a_table_gets_columns_if_this_is_asked_for(lake: Any) -> None:
    lake.store(1)
    columns = ("number", "array(named_struct('a', 1)) as more")

    lake.write(lake.batch(2), *columns, schema_evolution="add_columns")

    stored = lake.arrow().sort_by("number").to_pylist()
    assert [(row["name"], row["more"]) for row in stored] == [("x", None), (None, [{"a": 1}])]
    assert lake.read().count() == 2


def test_a_null_struct_and_a_null_in_one_are_found_by_a_condition(lake: Any) -> None:
    batch = lake.batch(1, 2, 3)
    part = "if(number = 3, null, named_struct('a.b', 1, 'a', nullif(number, 2))) as part"

    lake.sink().write(batch, batch.payload(SCHEMA).selectExpr("number", part).coalesce(1))

    def where(*path: str) -> list[int]:
        if isinstance(lake, DeltaLake):
            found = lake.table().to_pyarrow_dataset().to_table(filter=ds.field(*path).is_null())
        else:
            found = lake.table().scan(IsNull(".".join(path))).to_arrow()
        return sorted(found["number"].to_pylist())

    assert (where("part"), where("part", "a")) == ([3], [2, 3])


def test_readers_get_the_types_exactly(lake: Any) -> None:
    batch = lake.batch(3)
    tiny = ["cast(number as tinyint) as tiny"] if isinstance(lake, DeltaLake) else []
    frame = batch.payload(SCHEMA).selectExpr(
        "number",
        "cast(number as decimal(38, 10)) as decimal",
        "timestamp_micros(1) as at",
        "timestamp_ntz'2024-01-01 00:00:00' as ntz",
        "date'1582-10-10' as day",
        "X'00ff' as binary",
        "map('a', array(named_struct('b', 1.5F))) as nested",
        *tiny,
    )
    lake.sink().write(batch, frame)

    read = lake.read().drop("batch_id")

    assert read.schema.simpleString() == frame.schema.simpleString()
    assert read.collect() == frame.collect()
    (row,) = lake.arrow().to_pylist()
    assert (row["nested"], row["binary"]) == ([("a", [{"b": 1.5}])], b"\x00\xff")


def test_a_table_that_is_deleted_meanwhile_is_an_error_and_the_next_attempt_succeeds(
    lake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = lake.batch(1)
    told = lake.location if isinstance(lake, DeltaLake) else TABLE

    at_call(monkeypatch, lake.output, "replace", lake.drop)
    with pytest.raises(StorageFailed, match=rf"{told}.*batch {batch.batch_id} of orders"):
        lake.write(batch)

    lake.write(lake.again(batch))
    assert lake.numbers() == [1]


def create_delta_table(lake: Any, **options: Any) -> None:
    columns = {"number": "long", "name": "string", "batch_id": "long"}
    DeltaTable.create(
        lake.location,
        schema=Schema([Field(name, kind) for name, kind in columns.items()]),
        configuration={"pgque.lineage": str(lake.client.incarnation())},
        raise_if_key_not_exists=False,
        **options,
    )


UPSERT = {"mode": "upsert", "key": ["number"]}


@pytest.mark.parametrize(
    ("lake", "others", "options"),
    [
        *((DeltaLake, 0, {}), (DeltaLake, 1, {}), (DeltaLake, 2, {}), (DeltaLake, 1, UPSERT)),
        (IcebergLake, 1, {}),
    ],
    indirect=["lake"],
)
def test_a_table_that_was_created_again_does_not_take_a_commit_for_the_old_one(
    lake: Any, monkeypatch: pytest.MonkeyPatch, others: int, options: dict[str, Any]
) -> None:
    """Whatever others store in it, so that its version may be the old one's."""
    batch = lake.batch(1)
    lake.write(batch, **options)
    batch = lake.again(batch)

    def created_again() -> None:
        if isinstance(lake, DeltaLake):
            shutil.rmtree(lake.location)
            create_delta_table(lake)
        else:
            old = lake.table()
            lake.drop()
            lake.catalog.create_table(
                TABLE, old.schema(), properties=old.properties, location=old.location()
            )
        for _ in range(others):
            other = of_another(lake)
            lake.write(other, "9L as number", "name")
            other.claim.release()

    at_call(monkeypatch, lake.output, "replace", created_again)
    with pytest.raises(StorageFailed) as told:
        lake.write(batch, **options)

    assert f"batch {batch.batch_id} of orders/revenue" in str(told.value)
    assert "created again" in str(told.value)
    kept = [9] if others else []
    assert lake.numbers() == kept
    lake.write(lake.again(batch), **options)
    assert lake.numbers() == [1, *kept]


@pytest.mark.parametrize("columns", [["*"], ["number"]], ids=["all columns", "no partition column"])
def test_a_partitioned_delta_table_is_refused(
    client: Client, spark: SparkSession, tmp_path: Path, columns: list[str]
) -> None:
    lake = DeltaLake(client, spark, tmp_path)
    create_delta_table(lake, partition_by=["name"])

    with pytest.raises(InvalidArgument, match=r"has partitions by name.*need no partitions"):
        lake.write(lake.batch(1), *columns)

    assert list(tmp_path.rglob("*.parquet")) == []


@pytest.mark.parametrize("transform", [IdentityTransform(), DayTransform()], ids=str)
def test_a_partitioned_iceberg_table_is_refused(
    client: Client, spark: SparkSession, tmp_path: Path, transform: Transform[object, object]
) -> None:
    lake = IcebergLake(client, spark, tmp_path)
    lake.store(1)
    lake.drop()
    lake.catalog.create_table(
        TABLE,
        IcebergSchema(
            NestedField(1, "number", LongType()),
            NestedField(2, "name", StringType()),
            NestedField(3, "at", TimestamptzType()),
            NestedField(4, "batch_id", LongType()),
        ),
        location=(tmp_path / "partitioned").as_uri(),
        partition_spec=PartitionSpec(PartitionField(3, 1000, transform, "day")),
        properties={"pgque.lineage": str(client.incarnation())},
    )

    with pytest.raises(InvalidArgument, match=r"has partitions by day.*need no partitions"):
        lake.write(lake.batch(1), "*", "current_timestamp() as at")

    assert list((tmp_path / "partitioned").rglob("*.parquet")) == []


@pytest.mark.parametrize("name", ["a.b", "a`b"])
def test_a_column_that_spark_does_not_find_is_refused_by_name(lake: Any, name: str) -> None:
    batch = lake.batch(1)

    with pytest.raises(InvalidArgument, match=f"column {name} has a dot or a backtick"):
        lake.sink().write(batch, batch.payload("number bigint").toDF(name))


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_in_an_object_store(client: Client, spark: SparkSession, s3: S3, kind: str) -> None:
    def sink(bucket: str) -> Any:
        if kind == "delta":
            return DeltaSink(f"s3://{bucket}/delta", storage_options=s3.options)
        return IcebergSink(TABLE, warehouse=f"s3://{bucket}/iceberg", storage_options=s3.options)

    batch = next_batch(client, spark, [{"number": number} for number in range(9)])
    with pytest.raises(StorageFailed, match=r"(s3://missing/delta|revenue).*batch \d+") as told:
        sink("missing").write(batch, batch.payload(SCHEMA))
    assert s3.secret not in str(told.value)

    for where in ("true", "number < 5"):
        sink("lake").write(batch, batch.payload(SCHEMA).where(where))
        batch = SparkBatch(spark, claim(client), client.url)

    if kind == "delta":
        options = {**s3.options, "aws_allow_http": "true"}
        found = DeltaTable(s3.url("delta"), storage_options=options).to_pyarrow_table()
    else:
        catalog = iceberg_catalog(client.url, **s3.iceberg_properties)
        found = catalog.load_table(TABLE).scan().to_arrow()
    assert sorted(found["number"].to_pylist()) == list(range(5))
    names = s3.names(f"{kind}/")
    assert names
    for name in names:
        body = s3.client.get_object(Bucket="lake", Key=name)["Body"].read()
        assert s3.secret.encode() not in body
