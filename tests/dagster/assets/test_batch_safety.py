"""An IO manager that may replace the output of one batch by that of the next one is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import PgqueResource, SparkBatch, pgque_asset, pgque_multi_asset
from pgque_dagster.client import Client
from tests.dagster.support import SessionHolder, StoringIOManager, materialize
from tests.support.events import publish


@pgque_asset(queue="orders")
def revenue(batch: SparkBatch) -> int:
    return batch.events().count()


@pgque_asset(queue="orders", consumer="revenue", batch_safe=True)
def known(batch: SparkBatch) -> int:
    return batch.events().count()


@pgque_multi_asset(queue="orders", consumer="revenue", outs={"one": dg.AssetOut()})
def several(batch: SparkBatch) -> int:
    return batch.events().count()


@pgque_asset(queue="orders", consumer="revenue")
def stores_itself(batch: SparkBatch) -> Any:
    return dg.MaterializeResult(metadata={"events": batch.events().count()})


MANAGERS: dict[str, Callable[[Path], dg.IOManager]] = {
    "pickle": lambda folder: dg.FilesystemIOManager(base_dir=str(folder)),
    "memory": lambda folder: dg.InMemoryIOManager(),
}


def error_of(result: dg.ExecuteInProcessResult) -> str:
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    return str(failure.step_failure_data.error)


@pytest.mark.parametrize("kind", MANAGERS)
@pytest.mark.parametrize("asset", [revenue, several], ids=["asset", "multi_asset"])
def test_an_io_manager_that_is_not_known_to_keep_batches_apart_is_refused(
    client: Client, spark: SparkSession, tmp_path: Path, kind: str, asset: dg.AssetsDefinition
) -> None:
    publish(client, ["a"])

    result = materialize(asset, client.url, spark, io_manager=MANAGERS[kind](tmp_path))

    lease = client.lease_info("orders", "revenue")
    assert not result.success
    assert "may replace the output of a batch of" in error_of(result)
    assert "batch_safe=True" in error_of(result)
    assert list(tmp_path.iterdir()) == []
    assert lease is not None and not lease.is_live


def test_the_default_io_manager_of_dagster_is_refused(client: Client, spark: SparkSession) -> None:
    publish(client, ["a"])
    resources = {"pgque": PgqueResource(url=client.url), "pyspark": SessionHolder(spark)}

    for run in (dg.materialize, dg.materialize_to_memory):
        result = run([revenue], resources=resources, raise_on_error=False)

        assert "may replace the output of a batch of revenue" in error_of(result)


def test_an_asset_may_say_that_its_io_manager_keeps_batches_apart(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    publish(client, ["a"])

    assert materialize(known, client.url, spark, io_manager=MANAGERS["pickle"](tmp_path)).success
    assert client.next_batch("orders", "revenue") is None


def test_an_io_manager_may_say_that_it_keeps_batches_apart(
    client: Client, spark: SparkSession
) -> None:
    publish(client, ["a"])
    manager = StoringIOManager()

    assert materialize(revenue, client.url, spark, io_manager=manager).success
    assert manager.stored == [1]


def test_a_function_that_stores_its_results_itself_needs_no_io_manager_that_does(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    publish(client, ["a"])
    manager = MANAGERS["pickle"](tmp_path)

    assert materialize(stores_itself, client.url, spark, io_manager=manager).success
    assert client.next_batch("orders", "revenue") is None
