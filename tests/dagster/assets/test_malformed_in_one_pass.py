"""Malformed events of an asset that returns a DataFrame are found while it is stored."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster import ParquetBatchIOManager, SparkBatch, pgque_asset
from pgque_dagster.client import Client
from pgque_dagster.client.encoding import Payload
from pgque_dagster.spark import ParquetSink
from pgque_dagster.spark import batch as batch_module
from tests.dagster.support import StoringIOManager, materialize
from tests.support.events import publish

SCHEMA = "total double not null"
Run = Callable[[Callable[..., Any]], dg.ExecuteInProcessResult]


@pytest.fixture(autouse=True)
def on_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "DRIVER_SIDE_EVENTS", -1)


@pytest.fixture
def run(client: Client, spark: SparkSession, tmp_path: Path) -> Run:
    """Materializes an asset of the function, stored as Parquet."""

    def materialized(function: Callable[..., Any]) -> dg.ExecuteInProcessResult:
        asset = pgque_asset(queue="orders", consumer="revenue", name="totals")(function)
        manager = ParquetBatchIOManager(base_dir=str(tmp_path))
        return materialize(asset, client.url, spark, io_manager=manager)

    return materialized


def payloads(good: int, wrong: int) -> list[Payload]:
    return [{"total": 1.5}] * good + [{"total": "x"}] * wrong


def test_malformed_events_become_dead_letters_and_the_metadata_count_them(
    client: Client, spark: SparkSession, run: Run, tmp_path: Path
) -> None:
    publish(client, payloads(40, 3))

    def totals(batch: SparkBatch) -> DataFrame:
        frame = batch.payload(SCHEMA)
        assert batch.claim.requested.dead_lettered == 0, "they are looked for before the write"
        return frame

    result = run(totals)

    assert result.success
    assert ParquetSink(tmp_path / "totals").read(spark).count() == 40
    assert [count.count for count in client.dead_letter_counts("orders")] == [3]
    (made,) = result.asset_materializations_for_node("totals")
    assert made.metadata["pgque/dead_lettered"].value == 3


def test_too_many_malformed_events_fail_the_run_and_nothing_is_published_or_acked(
    client: Client, spark: SparkSession, run: Run, tmp_path: Path
) -> None:
    publish(client, payloads(20, 20))

    def totals(batch: SparkBatch) -> DataFrame:
        return batch.payload(SCHEMA)

    def corrected(batch: SparkBatch) -> DataFrame:
        return batch.events(["ev_data"])

    failed = run(totals)
    error = str(failed.failure_data_for_node("totals").error)  # type: ignore[union-attr]

    assert not failed.success
    assert "20 of 40 events of batch" in error
    assert ParquetSink(tmp_path / "totals").files() == []
    assert client.dead_letter_counts("orders") == []
    assert run(corrected).success
    assert ParquetSink(tmp_path / "totals").read(spark).count() == 40


def test_an_asset_that_uses_none_of_its_payloads_fails_as_well(
    client: Client, spark: SparkSession, run: Run, tmp_path: Path
) -> None:
    publish(client, payloads(20, 20))

    def totals(batch: SparkBatch) -> DataFrame:
        batch.payload(SCHEMA)
        return batch.spark.range(1)

    failed = run(totals)

    assert not failed.success
    assert ParquetSink(tmp_path / "totals").files() == []


def without_annotation(batch, folder):  # type: ignore[no-untyped-def]
    batch.payload(SCHEMA).write.parquet(str(folder))
    return batch.spark.range(1)


def storing_itself(batch: SparkBatch, folder: Path) -> None:
    batch.payload(SCHEMA).write.parquet(str(folder))


@pytest.mark.parametrize("function", [without_annotation, storing_itself])
def test_an_asset_that_may_store_by_its_own_means_gets_no_dataframe_of_a_batch_that_fails(
    client: Client,
    spark: SparkSession,
    tmp_path: Path,
    function: Callable[..., Any],
) -> None:
    publish(client, payloads(20, 20))

    def totals(batch):  # type: ignore[no-untyped-def]
        return function(batch, tmp_path / "own")

    totals.__annotations__ = {"return": None} if function is storing_itself else {}
    asset = pgque_asset(queue="orders", consumer="revenue")(totals)
    manager = ParquetBatchIOManager(base_dir=str(tmp_path))

    failed = materialize(asset, client.url, spark, io_manager=manager)

    assert not failed.success
    assert not (tmp_path / "own").exists()


def test_another_io_manager_gets_no_dataframe_of_a_batch_that_fails(
    client: Client, spark: SparkSession
) -> None:
    publish(client, payloads(20, 20))

    @pgque_asset(queue="orders", consumer="revenue")
    def totals(batch: SparkBatch) -> DataFrame:
        return batch.payload(SCHEMA)

    store = StoringIOManager()
    failed = materialize(totals, client.url, spark, io_manager=store)

    assert not failed.success
    assert store.stored == []
