"""Runs that wait, die or have another clock: Dagster says if they live, the lease who works."""

import time
from collections.abc import Callable
from datetime import timedelta

import dagster as dg
from pyspark.sql import SparkSession

from pgque_dagster import SparkBatch, build_pgque_sensor, pgque_asset
from pgque_dagster.client import Client
from tests.dagster.support import materialize
from tests.support.events import publish
from tests.support.sensing import evaluate, record_run, the_request

FAILURE = dg.DagsterRunStatus.FAILURE
STARTED = dg.DagsterRunStatus.STARTED


@pgque_asset(queue="orders")
def revenue(batch: SparkBatch) -> int:
    return batch.event_count


SENSOR = build_pgque_sensor([revenue], backoff=timedelta(0))


def requested(
    client: Client,
    instance: dg.DagsterInstance,
    status: dg.DagsterRunStatus,
    sensor: dg.SensorDefinition = SENSOR,
) -> dg.DagsterRun:
    request = the_request(evaluate(sensor, client.url, instance))
    return record_run(instance, revenue, client.url, request.tags, status)


def claim_as(client: Client, run: dg.DagsterRun, ttl: timedelta = timedelta(minutes=1)) -> None:
    owner = f"dagster run {run.run_id}"
    assert client.claim("orders", "revenue", owner=owner, ttl=ttl)


def lose_lease(client: Client, run: dg.DagsterRun) -> None:
    claim_as(client, run, ttl=timedelta(microseconds=1))


def fail_after_claim(client: Client, instance: dg.DagsterInstance) -> dg.DagsterRun:
    run = requested(client, instance, FAILURE)
    batch = client.claim("orders", "revenue", owner=f"dagster run {run.run_id}")
    assert batch is not None
    batch.release()
    return run


def log_by_another_clock(
    instance: dg.DagsterInstance, run: dg.DagsterRun, kind: dg.DagsterEventType, ahead: timedelta
) -> None:
    """Records an event of a run whose host's clock is ahead by this time."""
    instance.handle_new_event(
        dg.EventLogEntry(
            error_info=None,
            level="info",
            user_message="",
            run_id=run.run_id,
            timestamp=time.time() + ahead.total_seconds(),
            job_name=run.job_name,
            dagster_event=dg.DagsterEvent(kind.value, run.job_name),
        )
    )


def test_a_run_whose_host_is_behind_gets_no_rival(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    run = requested(client, instance, dg.DagsterRunStatus.STARTING)
    log_by_another_clock(instance, run, dg.DagsterEventType.RUN_START, -timedelta(minutes=20))

    assert f"run {run.run_id[:8]} is started" in evaluate(SENSOR, client.url, instance)


def test_a_run_whose_host_is_ahead_does_not_delay_the_next_attempt(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    run = requested(client, instance, STARTED)
    log_by_another_clock(instance, run, dg.DagsterEventType.RUN_FAILURE, timedelta(hours=2))

    assert the_request(evaluate(SENSOR, client.url, instance)).tags["pgque/attempt"] == "2"


def test_a_database_whose_clock_was_set_back_does_not_delay_the_next_attempt(
    client: Client, instance: dg.DagsterInstance, sql: Callable[[str], None]
) -> None:
    publish(client, ["a"])
    fail_after_claim(client, instance)
    sql("update pgque.position_log set sub_active = sub_active + interval '2 hours'")

    assert the_request(evaluate(SENSOR, client.url, instance)).tags["pgque/attempt"] == "2"


def test_a_run_that_has_not_claimed_its_batch_is_waited_for_however_long_it_takes(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    giving_up = build_pgque_sensor([revenue], max_attempts=1, on_exhausted="dead_letter")
    run = requested(client, instance, dg.DagsterRunStatus.STARTING, giving_up)
    log_by_another_clock(instance, run, dg.DagsterEventType.RUN_START, -timedelta(hours=9))

    assert "is started" in evaluate(giving_up, client.url, instance)
    assert client.dead_letter_counts("orders") == []
    instance.report_run_failed(run)
    assert "run " + run.run_id[:8] + " failed" in evaluate(giving_up, client.url, instance)


def test_a_dead_run_whose_batch_was_taken_over_does_not_delay_the_next_attempt(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    dead = requested(client, instance, STARTED)
    lose_lease(client, dead)
    fail_after_claim(client, instance)

    assert the_request(evaluate(SENSOR, client.url, instance)).tags["pgque/attempt"] == "3"


def test_nothing_is_given_up_while_a_run_that_was_taken_over_is_recorded_as_started(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    giving_up = build_pgque_sensor(
        [revenue], max_attempts=2, on_exhausted="dead_letter", backoff=timedelta(0)
    )
    lost = requested(client, instance, STARTED)
    lose_lease(client, lost)
    fail_after_claim(client, instance)

    reason = evaluate(giving_up, client.url, instance)

    assert f"run {lost.run_id[:8]} is still recorded as started" in reason
    assert client.dead_letter_counts("orders") == []
    instance.report_run_canceled(lost)
    assert "given up after 2 attempts" in evaluate(giving_up, client.url, instance)


def test_a_run_that_somebody_executes_again_is_waited_for_until_it_claims(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    failed = fail_after_claim(client, instance)
    again = instance.create_run_for_job(
        dg.Definitions(
            assets=[revenue], resources={"pgque": None, "pyspark": None}
        ).resolve_implicit_global_asset_job_def(),
        tags=dict(failed.tags),
        status=STARTED,
        parent_run_id=failed.run_id,
        root_run_id=failed.run_id,
    )

    assert f"run {again.run_id[:8]} is started" in evaluate(SENSOR, client.url, instance)
    lose_lease(client, again)
    assert the_request(evaluate(SENSOR, client.url, instance)).tags["pgque/attempt"] == "2"


def test_the_wait_after_a_failure_is_measured_by_the_databases_clock(
    client: Client, instance: dg.DagsterInstance, sql: Callable[[str], None]
) -> None:
    publish(client, ["a"])
    hourly = build_pgque_sensor([revenue], backoff=timedelta(hours=1))
    run = fail_after_claim(client, instance)
    early = evaluate(hourly, client.url, instance)
    sql("update pgque.position_log set sub_active = sub_active - interval '2 hours'")
    earlier = {**run.tags, "pgque/requested_at": "2020-01-01T00:00:00+00:00"}
    instance.add_run_tags(run.run_id, earlier)

    assert "failed, attempt 2 of 3 at" in early
    assert the_request(evaluate(hourly, client.url, instance)).tags["pgque/attempt"] == "2"


def test_a_run_for_another_life_of_the_database_leaves_the_batch_alone(
    client: Client, spark: SparkSession, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    request = the_request(evaluate(SENSOR, client.url, instance))
    other = {**request.tags, "pgque/lineage": "5e0b40d3-0000-4000-8000-000000000000"}

    result = materialize(revenue, client.url, spark, tags=other, instance=instance)

    assert result.success
    assert result.get_asset_materialization_events() == []
    lease = client.lease_info("orders", "revenue")
    assert lease is not None and lease.owner is None
