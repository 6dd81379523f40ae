"""Where the consumer of an asset starts, whoever registers it."""

from collections.abc import Callable
from datetime import UTC, datetime

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import SparkBatch, build_pgque_sensor, pgque_asset
from pgque_dagster.client import Client
from tests.dagster.support import StoringIOManager, materialize
from tests.support.dagster.sensing import evaluate
from tests.support.queues.events import claim, publish


def payloads(batch: SparkBatch) -> list[str]:
    return sorted(row.ev_data for row in batch.events().collect())


def started(start_at: object) -> dg.AssetsDefinition:
    return pgque_asset(queue="orders", name="revenue", start_at=start_at)(payloads)  # type: ignore[arg-type]


@pytest.fixture
def old_queue(client: Client, sql: Callable[[str], None]) -> Client:
    """The queue has an event, is some hours old, and has no consumer."""
    client.unregister_consumer("orders", "revenue", skip=True)
    publish(client, ["early"])
    sql("update pgque.queue set queue_switch_time = now() - interval '2 hours'")
    return client


def test_a_sensor_registers_the_consumer_there(
    old_queue: Client, instance: dg.DagsterInstance
) -> None:
    sensor = build_pgque_sensor([started("earliest")])

    assert "registered at start_at earliest" in evaluate(sensor, old_queue.url, instance)
    assert [event.payload for event in claim(old_queue).events()] == ["early"]


def test_a_run_by_hand_registers_the_consumer_there(old_queue: Client, spark: SparkSession) -> None:
    store = StoringIOManager()

    assert materialize(started("earliest"), old_queue.url, spark, io_manager=store).success
    assert store.stored == [["early"]]


def test_a_position_that_is_gone_is_the_reason_for_no_run(
    old_queue: Client, instance: dg.DagsterInstance, sql: Callable[[str], None]
) -> None:
    sql("update pgque.queue set queue_first_tick = 2")
    sensor = build_pgque_sensor([started(datetime(2020, 1, 1, tzinfo=UTC))])

    reason = evaluate(sensor, old_queue.url, instance)

    assert "does not retain all events since 2020-01-01" in reason
    assert old_queue.consumers("orders") == []


@pytest.mark.parametrize("start_at", ["soon", -1, True, datetime(2026, 1, 1), "2026-01-01T00:00"])
def test_what_is_no_position_is_refused_when_the_asset_is_defined(start_at: object) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="start_at"):
        started(start_at)
