"""An attempt is a run that claimed its batch. A run that fails before its claim does not count."""

from datetime import timedelta

import dagster as dg
import psycopg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import SparkBatch, build_pgque_sensor, pgque_asset
from pgque_dagster.client import Client
from pgque_dagster.sensors.attempts import AttemptPolicy
from tests.conftest import Server, administer
from tests.dagster.support import materialize
from tests.support.events import claim, make_queue, publish
from tests.support.sensing import evaluate, record_run, the_request


@dg.resource
def broken(context: dg.InitResourceContext) -> None:
    raise RuntimeError("no such host")


@pgque_asset(queue="orders")
def revenue(batch: SparkBatch) -> int:
    return batch.event_count


@pgque_asset(queue="orders", consumer="revenue", required_resource_keys={"warehouse"})
def loading(batch: SparkBatch) -> int:
    return batch.event_count


@pgque_asset(queue="orders", consumer="revenue", required_resource_keys={"warehouse"})
def failing(batch: SparkBatch) -> int:
    raise ValueError("boom")


def held(client: Client) -> tuple[str, str]:
    """Returns status and detail of the health check of the held batch."""
    (check,) = [each for each in client.health() if each.check == "held_batch:revenue"]
    return check.status, check.detail


def run(
    asset: dg.AssetsDefinition,
    request: dg.RunRequest,
    client: Client,
    spark: SparkSession,
    instance: dg.DagsterInstance,
    warehouse: object = "there",
) -> dg.ExecuteInProcessResult:
    return materialize(
        asset,
        client.url,
        spark,
        tags=dict(request.tags),
        instance=instance,
        resources={"warehouse": warehouse},
    )


def test_a_batch_that_no_run_claimed_is_not_given_up_and_a_healthy_run_consumes_it(
    client: Client, spark: SparkSession, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a", "b"])
    sensor = build_pgque_sensor(
        [loading], max_attempts=1, backoff=timedelta(0), on_exhausted="dead_letter"
    )
    for _ in range(3):
        request = the_request(evaluate(sensor, client.url, instance))
        assert not run(loading, request, client, spark, instance, warehouse=broken).success

    request = the_request(evaluate(sensor, client.url, instance))
    assert client.dead_letter_counts("orders") == []
    assert run(loading, request, client, spark, instance).success
    assert client.lease_info("orders", "revenue") is None


def test_only_runs_that_claimed_the_batch_use_attempts_up(
    client: Client, spark: SparkSession, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    sensor = build_pgque_sensor(
        [failing], max_attempts=2, backoff=timedelta(0), on_exhausted="dead_letter"
    )
    for warehouse in (broken, "there", broken, "there"):
        request = the_request(evaluate(sensor, client.url, instance))
        run(failing, request, client, spark, instance, warehouse=warehouse)

    reason = evaluate(sensor, client.url, instance)

    assert "given up after 2 attempts" in reason
    (letters,) = client.dead_letter_counts("orders")
    assert letters.count == 1


def test_runs_that_ended_before_they_claimed_the_batch_delay_the_next_one_and_are_told(
    client: Client, spark: SparkSession, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    sensor = build_pgque_sensor([loading], backoff=timedelta(hours=1))
    request = the_request(evaluate(sensor, client.url, instance))
    run(loading, request, client, spark, instance, warehouse=broken)

    reason = evaluate(sensor, client.url, instance)

    assert "failed, attempt 1 of 3 at" in reason
    assert reason.endswith("; 1 run ended before it claimed the batch")


def test_the_run_key_is_new_even_where_an_old_run_was_deleted(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    sensor = build_pgque_sensor([revenue], backoff=timedelta(0))
    recorded = []
    for _ in range(2):
        request = the_request(evaluate(sensor, client.url, instance))
        failed = dg.DagsterRunStatus.FAILURE
        recorded.append(record_run(instance, revenue, client.url, request.tags, failed))
    instance.delete_run(recorded[0].run_id)

    request = the_request(evaluate(sensor, client.url, instance))

    assert str(request.run_key).endswith(":3")


def test_a_held_batch_is_held_once_more_after_a_run_by_hand_that_failed(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    sensor = build_pgque_sensor([revenue], max_attempts=1)
    request = the_request(evaluate(sensor, client.url, instance))
    record_run(instance, revenue, client.url, request.tags, dg.DagsterRunStatus.FAILURE)
    claim(client).release()

    assert "held after 1 attempt," in evaluate(sensor, client.url, instance)
    assert held(client)[0] == "critical"
    by_hand = claim(client)
    assert held(client)[0] == "ok"
    by_hand.release()
    assert "held after 1 attempt," in evaluate(sensor, client.url, instance)
    assert "materialize revenue by hand: use Materialize on its page" in held(client)[1]


def test_a_held_batch_gets_its_attempts_again_when_an_event_of_it_is_set_aside(
    client: Client, instance: dg.DagsterInstance
) -> None:
    (poison,) = publish(client, ["a"])
    sensor = build_pgque_sensor([revenue], max_attempts=1)

    def fail() -> dg.RunRequest:
        request = the_request(evaluate(sensor, client.url, instance))
        record_run(instance, revenue, client.url, request.tags, dg.DagsterRunStatus.FAILURE)
        claim(client).release()
        return request

    fail()
    assert "held after 1 attempt," in evaluate(sensor, client.url, instance)

    client.set_events_aside("orders", "revenue", [poison], reason="by hand")

    assert held(client)[0] == "ok"
    assert str(fail().run_key).endswith(":2")
    assert "held after 1 attempt," in evaluate(sensor, client.url, instance)
    assert "held after 1 attempt," in evaluate(sensor, client.url, instance)


def test_a_held_batch_is_recorded_once_and_not_at_each_evaluation(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    sensor = build_pgque_sensor([revenue], max_attempts=1)
    request = the_request(evaluate(sensor, client.url, instance))
    record_run(instance, revenue, client.url, request.tags, dg.DagsterRunStatus.FAILURE)
    claim(client).release()

    reasons, written = [], []
    with psycopg.connect(client.url, autocommit=True) as db:
        for _ in range(2):
            reasons.append(evaluate(sensor, client.url, instance))
            written += db.execute("select xmin::text from pgque.held_batch").fetchall()

    assert reasons[0] == reasons[1]
    assert len(written) == 2
    assert written[0] == written[1]


def test_runs_recorded_without_an_epoch_count_as_attempts(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    sensor = build_pgque_sensor([revenue], max_attempts=1)
    request = the_request(evaluate(sensor, client.url, instance))
    older = {name: value for name, value in request.tags.items() if name != "pgque/epoch"}
    record_run(instance, revenue, client.url, older, dg.DagsterRunStatus.FAILURE)

    assert "held after 1 attempt" in evaluate(sensor, client.url, instance)


def test_nothing_is_given_up_while_a_run_that_claimed_it_has_not_ended(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    sensor = build_pgque_sensor([revenue], max_attempts=1, on_exhausted="dead_letter")
    request = the_request(evaluate(sensor, client.url, instance))
    status = dg.DagsterRunStatus.STARTED
    paused = record_run(instance, revenue, client.url, request.tags, status)
    owner = f"dagster run {paused.run_id}"
    client.claim("orders", "revenue", owner=owner, ttl=timedelta(microseconds=1))

    reason = evaluate(sensor, client.url, instance)

    assert f"run {paused.run_id[:8]} is still recorded as started" in reason
    assert client.dead_letter_counts("orders") == []
    instance.report_run_canceled(paused)
    assert "given up after 1 attempt" in evaluate(sensor, client.url, instance)


@pytest.mark.parametrize(
    ("backoff", "runs", "wait"),
    [
        (timedelta(seconds=10), 1, timedelta(seconds=10)),
        (timedelta(seconds=10), 3, timedelta(seconds=40)),
        (timedelta(seconds=10), 100_000, timedelta(minutes=10)),
        (timedelta(hours=1), 5, timedelta(hours=1)),
        (timedelta(0), 5, timedelta(0)),
    ],
)
def test_the_wait_doubles_with_each_run_up_to_ten_minutes_or_the_backoff(
    backoff: timedelta, runs: int, wait: timedelta
) -> None:
    assert AttemptPolicy(3, backoff).wait_after(runs) == wait


def test_runs_of_an_earlier_database_do_not_use_attempts_up(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    sensor = build_pgque_sensor(
        [revenue], max_attempts=1, backoff=timedelta(0), on_exhausted="dead_letter"
    )
    request = the_request(evaluate(sensor, client.url, instance))
    earlier = {**request.tags, "pgque/epoch": "7"}
    record_run(instance, revenue, client.url, earlier, dg.DagsterRunStatus.FAILURE)

    assert len(evaluate(sensor, client.url, instance)) == 1


def test_runs_for_another_database_count_for_nothing(
    server: Server,
    template_database: str,
    client: Client,
    spark: SparkSession,
    instance: dg.DagsterInstance,
) -> None:
    """In a new database batch ids start again, but Dagster's instance still has the old runs."""
    sensor = build_pgque_sensor(
        [failing], max_attempts=1, backoff=timedelta(0), on_exhausted="dead_letter"
    )
    publish(client, ["tried and failed"])
    first = the_request(evaluate(sensor, client.url, instance))
    run(failing, first, client, spark, instance)
    administer(server, f"create database reborn template {template_database}")
    try:
        with Client(server.database_url("reborn")) as reborn:
            make_queue(reborn)
            publish(reborn, ["never tried"])
            again = the_request(evaluate(sensor, reborn.url, instance))

            assert again.tags["pgque/batch_id"] == first.tags["pgque/batch_id"]
            assert again.tags["pgque/attempt"] == "1"
            assert again.run_key != first.run_key
            assert reborn.dead_letter_counts("orders") == []
    finally:
        administer(server, "drop database reborn with (force)")


def test_a_new_database_registers_a_consumer_that_had_runs_for_another(
    server: Server, template_database: str, client: Client, instance: dg.DagsterInstance
) -> None:
    sensor = build_pgque_sensor([revenue])
    publish(client, ["a"])
    request = the_request(evaluate(sensor, client.url, instance))
    record_run(instance, revenue, client.url, request.tags, dg.DagsterRunStatus.SUCCESS)
    administer(server, f"create database reborn template {template_database}")
    try:
        with Client(server.database_url("reborn")) as reborn:
            reborn.create_queue("orders")

            assert "registered at the first tick" in str(evaluate(sensor, reborn.url, instance))
    finally:
        administer(server, "drop database reborn with (force)")
