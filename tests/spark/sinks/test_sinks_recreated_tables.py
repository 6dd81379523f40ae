"""A table that somebody deletes and creates again while an attempt is behind its renewal."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Field, Schema
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster.client import Client
from pgque_dagster.spark import DeltaSink, IcebergSink, SparkBatch
from pgque_dagster.spark.sinks.delta_output import DeltaOutput
from pgque_dagster.spark.sinks.iceberg_output import IcebergOutput
from pgque_dagster.spark.sinks.storage import StorageFailed
from tests.support.attempts import again, next_batch, once_before_the_swap
from tests.support.events import claim
from tests.support.stored_tables import iceberg_catalog

SCHEMA = "number bigint, name string"
TABLE = "sales.revenue"


@pytest.mark.parametrize(
    ("mode", "writes"), [("append", 0), ("append", 1), ("append", 2), ("upsert", 1)]
)
def test_a_delta_table_that_was_created_again_does_not_take_a_commit_for_the_old_one(
    client: Client,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: Any,
    writes: int,
) -> None:
    location = str(tmp_path / "table")
    options: dict[str, Any] = {"mode": mode, "key": ["number"]} if mode != "append" else {}
    client.register_consumer("orders", "another")
    batch = next_batch(client, spark, [{"number": 1, "name": "x"}])
    sink = DeltaSink(location, **options)
    sink.write(batch, batch.payload(SCHEMA))
    batch = again(client, spark, batch)

    def created_again() -> None:
        shutil.rmtree(location)
        create_delta_table(location, str(client.lineage()))
        for _ in range(writes):
            another = claimed_by_another(client, spark)
            DeltaSink(location).write(another, rows(another))
            another.claim.release()

    once_before_the_swap(monkeypatch, DeltaOutput, created_again)
    with pytest.raises(StorageFailed) as told:
        sink.write(batch, batch.payload(SCHEMA))

    assert "Delta table" in str(told.value) and "created again" in str(told.value)
    assert f"batch {batch.batch_id} of orders/revenue" in str(told.value)
    kept = [9] if writes else []
    assert delta_numbers(location) == kept
    later = again(client, spark, batch)
    sink.write(later, later.payload(SCHEMA))
    assert delta_numbers(location) == [1, *kept]


@pytest.mark.parametrize("with_rows", [True, False])
def test_an_iceberg_table_that_was_created_again_does_not_take_a_commit_for_the_old_one(
    client: Client,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    with_rows: bool,
) -> None:
    sink = IcebergSink(TABLE, warehouse=tmp_path / "warehouse")
    client.register_consumer("orders", "another")
    batch = next_batch(client, spark, [{"number": 1, "name": "x"}])

    def created_again() -> None:
        catalog = iceberg_catalog(client.url)
        old = catalog.load_table(TABLE)
        catalog.drop_table(TABLE)
        if with_rows:
            another = claimed_by_another(client, spark)
            elsewhere = IcebergSink(TABLE, warehouse=tmp_path / "another")
            elsewhere.write(another, rows(another))
        else:
            catalog.create_table(
                TABLE, old.schema(), properties=old.properties, location=old.location()
            )

    once_before_the_swap(monkeypatch, IcebergOutput, created_again)
    with pytest.raises(StorageFailed) as told:
        sink.write(batch, batch.payload(SCHEMA))

    assert f"Iceberg table {TABLE}" in str(told.value) and "created again" in str(told.value)
    assert f"batch {batch.batch_id} of orders/revenue" in str(told.value)
    kept = [9] if with_rows else []
    assert iceberg_numbers(client) == kept
    later = again(client, spark, batch)
    sink.write(later, later.payload(SCHEMA))
    assert iceberg_numbers(client) == [1, *kept]


def claimed_by_another(client: Client, spark: SparkSession) -> SparkBatch:
    return SparkBatch(spark, claim(client, consumer="another"), client.url)


def rows(another: SparkBatch) -> DataFrame:
    return another.payload(SCHEMA).selectExpr("9L as number", "name")


def create_delta_table(location: str, lineage: str) -> None:
    columns = {"number": "long", "name": "string", "batch_id": "long"}
    DeltaTable.create(
        location,
        schema=Schema([Field(name, kind) for name, kind in columns.items()]),
        configuration={"pgque.lineage": lineage},
        raise_if_key_not_exists=False,
    )


def delta_numbers(location: str) -> list[int]:
    return sorted(DeltaTable(location).to_pyarrow_table()["number"].to_pylist())


def iceberg_numbers(client: Client) -> list[int]:
    stored = iceberg_catalog(client.url).load_table(TABLE).scan().to_arrow()
    return sorted(stored["number"].to_pylist())
