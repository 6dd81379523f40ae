"""How long a failed attempt delays the next one, whatever the clocks of hosts say."""

import time
from collections.abc import Callable
from datetime import timedelta

import dagster as dg
import pytest

from pgque_dagster import build_pgque_sensor
from pgque_dagster.client import Client
from pgque_dagster.sensors.batch_policy import BatchPolicy
from tests.dagster.sensors.attempts import (
    FAILURE,
    GIVING_UP,
    NOW,
    SENSOR,
    STARTED,
    attempt,
    fail_after_claim,
    requested,
)
from tests.support.dagster.assets import revenue
from tests.support.dagster.sensing import evaluate
from tests.support.queues.events import publish


def log_event(
    instance: dg.DagsterInstance,
    run: dg.DagsterRun,
    kind: dg.DagsterEventType,
    ahead: timedelta = timedelta(0),
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


def test_runs_that_ended_before_they_claimed_the_batch_delay_the_next_one_and_are_told(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    sensor = build_pgque_sensor([revenue], backoff=timedelta(hours=1))
    requested(client, instance, FAILURE, sensor)

    reason = evaluate(sensor, client.url, instance)

    assert "failed, attempt 1 of 3 at" in reason
    assert reason.endswith("; 1 run ended before it claimed the batch")


def test_a_run_whose_host_is_behind_gets_no_rival_and_is_not_given_up(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    run = requested(client, instance, dg.DagsterRunStatus.STARTING)
    log_event(instance, run, dg.DagsterEventType.RUN_START, -timedelta(hours=9))

    assert "is started" in evaluate(GIVING_UP, client.url, instance)
    assert client.dead_letter_counts("orders") == []
    instance.report_run_failed(run)
    assert attempt(evaluate(GIVING_UP, client.url, instance)) == "2"


def test_a_run_whose_host_is_ahead_does_not_delay_the_next_attempt(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    run = requested(client, instance, STARTED)
    log_event(instance, run, dg.DagsterEventType.RUN_FAILURE, timedelta(hours=2))

    assert attempt(evaluate(SENSOR, client.url, instance)) == "2"


def test_a_database_whose_clock_was_set_back_does_not_delay_the_next_attempt(
    client: Client, instance: dg.DagsterInstance, sql: Callable[[str], None]
) -> None:
    publish(client, ["a"])
    fail_after_claim(client, instance)
    sql("update pgque.position_log set sub_active = sub_active + interval '2 hours'")

    assert attempt(evaluate(SENSOR, client.url, instance)) == "2"


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
    assert attempt(evaluate(hourly, client.url, instance)) == "2"


@pytest.mark.parametrize(
    ("backoff", "runs", "wait"),
    [
        (timedelta(seconds=10), 1, timedelta(seconds=10)),
        (timedelta(seconds=10), 3, timedelta(seconds=40)),
        (timedelta(seconds=10), 100_000, timedelta(minutes=10)),
        (timedelta(hours=1), 5, timedelta(hours=1)),
        (NOW, 5, NOW),
    ],
)
def test_the_wait_doubles_with_each_run_up_to_ten_minutes_or_the_backoff(
    backoff: timedelta, runs: int, wait: timedelta
) -> None:
    assert BatchPolicy(10, 3, backoff, "dead_letter").wait_after(runs) == wait
