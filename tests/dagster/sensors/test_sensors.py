"""`build_pgque_sensor`: one run per batch, one at a time, up to `max_attempts` attempts."""

from datetime import timedelta

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import SparkBatch, build_pgque_sensor, pgque_asset
from pgque_dagster.client import Client
from tests.dagster.support import materialize
from tests.support.events import make_queue, publish, tick
from tests.support.sensing import evaluate, record_run


@pgque_asset(queue="orders")
def revenue(batch: SparkBatch) -> int:
    return batch.event_count


@pgque_asset(queue="orders", consumer="revenue")
def failing(batch: SparkBatch) -> int:
    raise ValueError("boom")


def run(
    asset: dg.AssetsDefinition,
    request: dg.RunRequest,
    url: str,
    spark: SparkSession,
    instance: dg.DagsterInstance,
) -> None:
    materialize(asset, url, spark, tags=dict(request.tags), instance=instance)


def test_a_finished_batch_gets_one_run_for_its_asset(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    batch_id = client.next_batch("orders", "revenue")

    (request,) = evaluate(build_pgque_sensor([revenue]), client.url, instance)

    assert isinstance(request, dg.RunRequest)
    assert request.run_key == f"{client.lineage()}:orders:revenue:{batch_id}:1"
    assert request.asset_selection == [revenue.key]
    assert request.tags["dagster/max_retries"] == "0"


def test_without_events_there_is_no_run(client: Client, instance: dg.DagsterInstance) -> None:
    reason = evaluate(build_pgque_sensor([revenue]), client.url, instance)

    assert reason == "orders/revenue: no batch yet, no event waits"


def test_ticks_without_events_are_finished_without_a_run(
    client: Client, instance: dg.DagsterInstance
) -> None:
    for _ in range(3):
        tick(client)
    sensor = build_pgque_sensor([revenue], min_events=0)

    reason = evaluate(sensor, client.url, instance)

    assert reason == "orders/revenue: no batch yet, its ticks had no event"
    (info,) = client.consumers("orders")
    assert info.last_tick_id == 4


@pytest.mark.parametrize("min_events", [0, 1])
def test_an_idle_queue_gets_no_run_while_another_one_is_busy(
    client: Client, instance: dg.DagsterInstance, min_events: int
) -> None:
    make_queue(client, "busy", "other")
    sensor = build_pgque_sensor([revenue], min_events=min_events)
    for _ in range(3):
        client.send("busy", "a")
        with client.transaction() as db, db.transaction(force_rollback=True):
            db.execute("select pgque.send('orders', 'undone'::text)")  # consumes an id
        for queue in ("busy", "orders"):
            client.force_next_tick(queue)
        client.ticker()

        assert "orders/revenue: no batch yet, " in str(evaluate(sensor, client.url, instance))


def test_a_backlog_of_ticks_comes_as_one_run(client: Client, instance: dg.DagsterInstance) -> None:
    for _ in range(5):
        publish(client, ["a"])

    (request,) = evaluate(build_pgque_sensor([revenue]), client.url, instance)

    assert isinstance(request, dg.RunRequest)
    batch = client.claim("orders", "revenue", owner="a test")
    assert batch is not None and len(batch.events()) == 5


def test_few_events_wait_for_more(client: Client, instance: dg.DagsterInstance) -> None:
    sensor = build_pgque_sensor([revenue], min_events=3, max_age=timedelta(hours=1))
    publish(client, ["a", "b"])
    early = evaluate(sensor, client.url, instance)
    publish(client, ["c"])
    late = evaluate(sensor, client.url, instance)

    assert early == (
        "orders/revenue: no batch yet, up to 2 events wait: it is opened at min_events=3, or when "
        "the oldest has waited max_age=1:00:00"
    )
    assert len(late) == 1


def test_a_batch_whose_run_is_in_progress_gets_no_other(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    sensor = build_pgque_sensor([revenue])
    (request,) = evaluate(sensor, client.url, instance)
    assert isinstance(request, dg.RunRequest)
    record_run(instance, revenue, client.url, request.tags, dg.DagsterRunStatus.STARTED)

    reason = evaluate(sensor, client.url, instance)

    assert "is started (0 s)" in reason


def test_a_batch_that_somebody_leased_gets_no_run(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    client.claim("orders", "revenue", owner="a run of another instance")

    reason = evaluate(build_pgque_sensor([revenue]), client.url, instance)

    assert 'is leased by "a run of another instance" until' in reason


def test_a_run_that_died_with_its_lease_is_followed_by_the_next_attempt(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    sensor = build_pgque_sensor([revenue])
    (request,) = evaluate(sensor, client.url, instance)
    assert isinstance(request, dg.RunRequest)
    dead = record_run(instance, revenue, client.url, request.tags, dg.DagsterRunStatus.STARTED)
    client.claim(
        "orders", "revenue", owner=f"dagster run {dead.run_id}", ttl=timedelta(microseconds=1)
    )

    (again,) = evaluate(sensor, client.url, instance)

    assert isinstance(again, dg.RunRequest)
    assert again.run_key == request.run_key[:-1] + "2"  # type: ignore[index]


def test_a_failed_batch_is_tried_again_under_a_new_key_and_then_held(
    client: Client, spark: SparkSession, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    sensor = build_pgque_sensor([failing], max_attempts=2, backoff=timedelta(0))
    keys = []
    for _ in range(2):
        (request,) = evaluate(sensor, client.url, instance)
        assert isinstance(request, dg.RunRequest)
        keys.append(str(request.run_key)[-2:])
        run(failing, request, client.url, spark, instance)

    held = evaluate(sensor, client.url, instance)

    assert keys == [":1", ":2"]
    assert "held after 2 attempts" in held
    assert "materialize failing by hand" in held


def test_a_held_batch_is_consumed_by_a_run_by_hand(
    client: Client, spark: SparkSession, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    sensor = build_pgque_sensor([failing], max_attempts=1)
    (request,) = evaluate(sensor, client.url, instance)
    assert isinstance(request, dg.RunRequest)
    run(failing, request, client.url, spark, instance)

    materialize(revenue, client.url, spark, instance=instance)

    assert "orders/revenue: no batch yet, " in str(evaluate(sensor, client.url, instance))


def test_after_a_failure_the_sensor_waits(
    client: Client, spark: SparkSession, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    sensor = build_pgque_sensor([failing], backoff=timedelta(hours=1))
    (request,) = evaluate(sensor, client.url, instance)
    assert isinstance(request, dg.RunRequest)
    run(failing, request, client.url, spark, instance)

    assert "attempt 2 of 3 at" in evaluate(sensor, client.url, instance)


def test_a_database_that_is_away_skips_the_evaluation_with_the_reason(
    instance: dg.DagsterInstance,
) -> None:
    reason = evaluate(
        build_pgque_sensor([revenue]), "postgresql://nobody@127.0.0.1:1/none", instance
    )

    assert "Check that the server runs" in reason


def test_a_consumer_in_trouble_does_not_hold_up_the_others(
    client: Client, instance: dg.DagsterInstance
) -> None:
    @pgque_asset(queue="odrers")
    def misspelt(batch: SparkBatch) -> None:
        return None

    publish(client, ["a"])
    sensor = build_pgque_sensor([misspelt, revenue])

    assert len(evaluate(sensor, client.url, instance)) == 1
    client.claim("orders", "revenue", owner="somebody")
    reason = evaluate(sensor, client.url, instance)
    assert 'odrers/misspelt: queue "odrers" does not exist' in reason


def test_a_sensor_says_whose_batches_how_large_and_how_often_tried() -> None:
    @pgque_asset(queue="returns", consumer="desk", key_prefix="shop")
    def refunds(batch: SparkBatch) -> None:
        return None

    said = build_pgque_sensor(
        [revenue, refunds], min_events=7, max_events=500, max_age=timedelta(minutes=2),
        max_attempts=4, backoff=timedelta(seconds=9), on_exhausted="dead_letter", max_runs=6,
        parallel_runs=3,
    ).description  # fmt: skip

    for words in (
        "queue orders, consumer revenue, asset revenue; "
        "queue returns, consumer desk, asset shop/refunds",
        "While this sensor is off, nothing is consumed",
        "Sensors are STOPPED until somebody switches them on",
        "min_events=7",
        "max_age=0:02:00",
        "max_events=500",
        "max_attempts=4",
        "backoff=0:00:09",
        "its events become dead letters and the next batch follows (on_exhausted=dead_letter)",
        "parallel_runs=3",
        "max_runs=6",
    ):
        assert words in str(said)


def test_two_assets_of_one_consumer_are_refused_when_the_sensor_is_defined() -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="orders/revenue"):
        build_pgque_sensor([revenue, failing])


def test_an_asset_without_a_queue_is_refused_when_the_sensor_is_defined() -> None:
    @dg.asset
    def plain() -> None:
        return None

    with pytest.raises(dg.DagsterInvalidDefinitionError, match="plain consumes no queue"):
        build_pgque_sensor([plain])
