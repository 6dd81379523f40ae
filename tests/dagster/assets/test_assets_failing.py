"""An asset that fails reports a clear error, and its batch can be claimed again."""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pgque_dagster import PgqueResource, SparkBatch, pgque_asset
from pgque_dagster.client import Client
from tests.dagster.support import StoringIOManager, materialize
from tests.support.events import publish


def error_of(result: dg.ExecuteInProcessResult) -> str:
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    return str(failure.step_failure_data.error)


def is_free(client: Client) -> bool:
    """Whether the batch is open and can be claimed."""
    claimed = client.claim("orders", "revenue", owner="a test")
    if claimed is None:
        return False
    claimed.release()
    return True


def waits(batch: SparkBatch) -> None:
    threading.Event().wait()


def computes(batch: SparkBatch) -> None:
    never_ends(batch).collect()


def never_ends(batch: SparkBatch) -> DataFrame:
    def sleep(number: int) -> int:
        time.sleep(600)
        return number

    return batch.spark.range(1).select(f.udf(sleep, "bigint")("id"))


@pytest.mark.parametrize("body", [waits, computes])
def test_a_body_that_never_returns_is_ended_and_its_batch_given_back(
    client: Client, spark: SparkSession, body: Callable[[SparkBatch], None]
) -> None:
    publish(client, ["a"])

    @pgque_asset(
        queue="orders",
        consumer="revenue",
        lease_ttl=timedelta(minutes=1),
        timeout=timedelta(seconds=3),
    )
    def endless(batch: SparkBatch) -> None:
        body(batch)

    result = materialize(endless, client.url, spark)

    assert not result.success
    assert "of orders/revenue did not finish within 0:00:03" in error_of(result)
    assert is_free(client)


def test_storing_what_never_ends_is_ended_as_well(client: Client, spark: SparkSession) -> None:
    publish(client, ["a"])

    @pgque_asset(queue="orders", consumer="revenue", timeout=timedelta(seconds=3))
    def endless(batch: SparkBatch) -> DataFrame:
        return never_ends(batch)

    store = StoringIOManager(lambda frame: frame.collect())
    result = materialize(endless, client.url, spark, io_manager=store)

    assert not result.success
    assert store.stored == []
    assert is_free(client)


def test_a_body_in_time_is_not_disturbed_and_its_errors_are_its_own(
    client: Client, spark: SparkSession
) -> None:
    publish(client, ["a"])

    @pgque_asset(queue="orders", consumer="revenue", timeout=timedelta(minutes=5))
    def failing(batch: SparkBatch) -> None:
        raise ValueError("boom")

    @pgque_asset(queue="orders", consumer="revenue", timeout=timedelta(minutes=5))
    def working(context: dg.AssetExecutionContext, batch: SparkBatch) -> Iterator[Any]:
        yield dg.Output(batch.event_count, metadata={"run": context.run.run_id})

    failed = materialize(failing, client.url, spark)
    store = StoringIOManager()
    worked = materialize(working, client.url, spark, io_manager=store)

    assert "ValueError: boom" in error_of(failed)
    assert worked.success
    assert store.stored == [1]
    assert client.next_batch("orders", "revenue") is None


@pytest.mark.parametrize("named", [True, False])
def test_a_function_that_returns_nothing_to_store_fails_and_keeps_its_batch(
    client: Client, spark: SparkSession, named: bool
) -> None:
    publish(client, ["a"])

    if named:

        @pgque_asset(queue="orders", consumer="revenue", io_manager_key="io_manager")
        def forgetful(batch: SparkBatch):  # type: ignore[no-untyped-def]
            batch.events()
    else:

        @pgque_asset(queue="orders", consumer="revenue")
        def forgetful(batch: SparkBatch) -> DataFrame:
            return None  # type: ignore[return-value]

    result = materialize(forgetful, client.url, spark)

    assert not result.success
    assert "forgetful: the function returned nothing, so nothing of the batch" in error_of(result)
    assert is_free(client)


def test_an_undeclared_queue_is_told_with_those_that_are(
    client: Client, spark: SparkSession
) -> None:
    @pgque_asset(queue="odrers")
    def misspelt(batch: SparkBatch) -> None:
        return None

    pgque = PgqueResource(url=client.url, queues=["orders", "payments"])
    result = materialize(misspelt, client.url, spark, resources={"pgque": pgque})

    assert not result.success
    assert 'queue "odrers" does not exist' in error_of(result)
    assert "The resource pgque declares orders, payments" in error_of(result)


def test_a_consumer_removed_while_its_run_works_fails_the_run(
    client: Client, spark: SparkSession
) -> None:
    publish(client, ["a"])

    @pgque_asset(queue="orders", consumer="revenue")
    def orphan(batch: SparkBatch) -> None:
        client.unregister_consumer("orders", "revenue")

    result = materialize(orphan, client.url, spark)

    assert not result.success
    assert "BatchNotOpen" in error_of(result) or "ConsumerNotFound" in error_of(result)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_batches": 0}, "max_batches is 0"),
        ({"slices": 0}, "slices is 0"),
        ({"lease_ttl": timedelta()}, "lease_ttl is 0:00:00"),
        ({"timeout": timedelta(seconds=-1)}, "timeout is -1 day"),
        ({"max_seconds": 5.0}, "needs max_batches of 2 or more"),
        ({"max_batches": 2, "max_seconds": 0.0}, "max_seconds must be more than 0"),
        ({"key": "a", "name": "b"}, "pass either key, or name and key_prefix"),
        ({"io_manager_key": "a", "io_manager_def": StoringIOManager()}, "not both"),
    ],
)
def test_an_option_out_of_range_is_refused_when_the_asset_is_defined(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=message):

        @pgque_asset(queue="orders", **options)
        def wrong(batch: SparkBatch) -> None:
            return None
