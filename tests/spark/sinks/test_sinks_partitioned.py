"""A table that somebody partitioned: it is refused before anything is written, with what to do."""

from pathlib import Path

import pytest
from deltalake import DeltaTable, Field, Schema
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.transforms import DayTransform, IdentityTransform, Transform
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType
from pyspark.sql import SparkSession

from pgque_dagster.client import Client, InvalidArgument
from pgque_dagster.spark import DeltaSink, IcebergSink
from tests.support.attempts import next_batch
from tests.support.stored_tables import iceberg_catalog

SCHEMA = "number bigint, name string"


@pytest.mark.parametrize("columns", [["*"], ["number"]], ids=["all columns", "no partition column"])
def test_a_partitioned_delta_table_is_refused(
    client: Client, spark: SparkSession, tmp_path: Path, columns: list[str]
) -> None:
    location = str(tmp_path / "table")
    fields = {"number": "long", "name": "string", "batch_id": "long"}
    DeltaTable.create(
        location,
        schema=Schema([Field(name, kind) for name, kind in fields.items()]),
        partition_by=["name"],
        configuration={"pgque.lineage": str(client.lineage())},
        raise_if_key_not_exists=False,
    )
    batch = next_batch(client, spark, [{"number": 1, "name": "x"}])
    frame = batch.payload(SCHEMA).selectExpr(*columns)

    with pytest.raises(InvalidArgument, match=r"is partitioned by name.*without partitions"):
        DeltaSink(location).write(batch, frame)

    assert list(tmp_path.rglob("*.parquet")) == []
    DeltaSink(f"{location}-without").write(batch, frame)


@pytest.mark.parametrize("transform", [IdentityTransform(), DayTransform()], ids=str)
def test_a_partitioned_iceberg_table_is_refused(
    client: Client, spark: SparkSession, tmp_path: Path, transform: Transform[object, object]
) -> None:
    sink = IcebergSink("sales.first", warehouse=tmp_path)
    batch = next_batch(client, spark, [{"number": 1, "name": "x"}])
    frame = batch.payload(SCHEMA).selectExpr("*", "current_timestamp() as at")
    sink.write(batch, frame)
    iceberg_catalog(client.url).create_table(
        "sales.partitioned",
        IcebergSchema(
            NestedField(1, "number", LongType()),
            NestedField(2, "name", StringType()),
            NestedField(3, "at", TimestamptzType()),
            NestedField(4, "batch_id", LongType()),
        ),
        location=(tmp_path / "partitioned").as_uri(),
        partition_spec=PartitionSpec(PartitionField(3, 1000, transform, "day")),
        properties={"pgque.lineage": str(client.lineage())},
    )

    with pytest.raises(InvalidArgument, match=r"is partitioned by day.*without partitions"):
        IcebergSink("sales.partitioned", warehouse=tmp_path).write(batch, frame)

    assert list((tmp_path / "partitioned").rglob("*.parquet")) == []
