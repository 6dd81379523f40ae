"""Several batches in one run: each stored, recorded and acked by itself."""

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import SparkBatch, pgque_asset
from pgque_dagster.client import Client
from tests.dagster.support import StoringIOManager, materialize
from tests.support.events import publish

pytestmark = pytest.mark.usefixtures("one_event_a_batch")


def publish_batches(client: Client, payloads: list[str]) -> None:
    """Publishes each payload in a tick of its own."""
    for payload in payloads:
        publish(client, [payload])


def texts(batch: SparkBatch) -> list[str]:
    return sorted(row.ev_data for row in batch.events().collect())


def materialized_batches(result: dg.ExecuteInProcessResult) -> list[tuple[int, int]]:
    """Batch and number of events of each materialization, without the observations."""
    found = []
    for event in result.all_events:
        if event.event_type == dg.DagsterEventType.ASSET_MATERIALIZATION:
            metadata = event.materialization.metadata
            found.append((metadata["pgque/batch_id"].value, metadata["pgque/events"].value))
    return found


def test_a_run_takes_batches_until_none_is_left_and_records_each(
    client: Client, spark: SparkSession
) -> None:
    publish_batches(client, ["a", "b", "c"])
    held: list[object] = []

    @pgque_asset(queue="orders", consumer="revenue", max_batches=10)
    def drained(batch: SparkBatch) -> list[str]:
        return texts(batch)

    store = StoringIOManager(lambda value: held.append(client.lease_info("orders", "revenue")))
    result = materialize(drained, client.url, spark, io_manager=store)
    batches = [batch for batch, _ in materialized_batches(result)]

    assert result.success
    assert store.stored == [["a"], ["b"], ["c"]]
    assert len(set(batches)) == 3
    assert [lease.batch_id for lease in held if lease] == batches  # type: ignore[attr-defined]
    assert client.next_batch("orders", "revenue") is None


def test_a_run_takes_no_more_batches_than_it_may(client: Client, spark: SparkSession) -> None:
    publish_batches(client, ["a", "b", "c"])

    @pgque_asset(queue="orders", consumer="revenue", max_batches=2)
    def drained(batch: SparkBatch) -> list[str]:
        return texts(batch)

    store = StoringIOManager()
    materialize(drained, client.url, spark, io_manager=store)

    assert store.stored == [["a"], ["b"]]
    assert client.next_batch("orders", "revenue") is not None


def test_a_run_begins_no_further_batch_when_its_time_is_over(
    client: Client, spark: SparkSession
) -> None:
    publish_batches(client, ["a", "b"])

    @pgque_asset(queue="orders", consumer="revenue", max_batches=9, max_seconds=1e-9)
    def drained(batch: SparkBatch) -> list[str]:
        return texts(batch)

    store = StoringIOManager()
    result = materialize(drained, client.url, spark, io_manager=store)

    assert result.success
    assert store.stored == [["a"]]


@pytest.mark.parametrize("where", ["the body", "storing"])
def test_what_fails_in_a_later_batch_leaves_that_batch_and_no_other(
    client: Client, spark: SparkSession, where: str
) -> None:
    publish_batches(client, ["a", "b"])

    def fail(value: list[str]) -> None:
        if value == ["b"]:
            raise OSError("disk full")

    @pgque_asset(queue="orders", consumer="revenue", max_batches=9)
    def drained(batch: SparkBatch) -> list[str]:
        found = texts(batch)
        if where == "the body":
            fail(found)
        return found

    broken = StoringIOManager(fail)
    result = materialize(drained, client.url, spark, io_manager=broken)
    lease = client.lease_info("orders", "revenue")

    @pgque_asset(queue="orders", consumer="revenue")
    def again(batch: SparkBatch) -> list[str]:
        return texts(batch)

    storing = StoringIOManager()
    materialize(again, client.url, spark, io_manager=storing)

    assert not result.success
    assert broken.stored == [["a"]]
    assert lease is not None and not lease.is_live
    assert storing.stored == [["b"]]


def test_checks_of_later_batches_are_recorded_and_a_blocking_one_stops_the_run(
    client: Client, spark: SparkSession
) -> None:
    publish_batches(client, ["a", "b", "c", "d"])
    spec = dg.AssetCheckSpec("plausible", asset="drained", blocking=True)

    @pgque_asset(queue="orders", consumer="revenue", max_batches=9, check_specs=[spec])
    def drained(batch: SparkBatch) -> dg.MaterializeResult[None]:
        check = dg.AssetCheckResult(passed=texts(batch) != ["c"])
        return dg.MaterializeResult(metadata={"mine": batch.batch_id}, check_results=[check])

    result = materialize(drained, client.url, spark)
    checks = [
        event.asset_check_evaluation_data.passed
        for event in result.all_events
        if event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION
    ]
    lease = client.lease_info("orders", "revenue")

    assert not result.success
    assert checks == [True, True, False]
    assert len(materialized_batches(result)) == 3
    assert lease is not None and not lease.is_live


def test_a_later_result_keeps_its_own_metadata_and_data_version(
    client: Client, spark: SparkSession
) -> None:
    publish_batches(client, ["a", "b"])

    @pgque_asset(queue="orders", consumer="revenue", max_batches=9)
    def drained(batch: SparkBatch) -> dg.Output[list[str]]:
        found = texts(batch)
        return dg.Output(found, metadata={"mine": found[0]}, data_version=dg.DataVersion(found[0]))

    result = materialize(drained, client.url, spark)
    events = [
        event.materialization
        for event in result.all_events
        if event.event_type == dg.DagsterEventType.ASSET_MATERIALIZATION
    ]

    assert [event.metadata["mine"].value for event in events] == ["a", "b"]
    assert [(event.tags or {})["dagster/data_version"] for event in events] == ["a", "b"]
