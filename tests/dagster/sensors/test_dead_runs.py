"""The batch of a run whose process is known to be dead gets its next attempt at once."""

from datetime import timedelta

import dagster as dg
import pytest

from pgque_dagster import build_pgque_sensor
from pgque_dagster.client import Client, LeaseLost
from tests.support.dagster.assets import revenue
from tests.support.dagster.sensing import evaluate, record_run, the_request
from tests.support.queues.events import publish

SENSOR = build_pgque_sensor([revenue], max_attempts=5)


def test_the_lease_of_a_run_whose_process_died_is_not_waited_for(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    request = the_request(evaluate(SENSOR, client.url, instance))
    failure = dg.DagsterRunStatus.FAILURE
    run = record_run(instance, revenue, client.url, request.tags, failure)
    batch = client.claim("orders", "revenue", owner=f"dagster run {run.run_id}")
    assert batch is not None
    # A re-execution has this tag of the run before it.
    instance.add_run_tags(run.run_id, {"pgque/died": "another run"})
    assert "is leased by" in evaluate(SENSOR, client.url, instance)

    instance.add_run_tags(run.run_id, {"pgque/died": run.run_id})

    again = the_request(evaluate(SENSOR, client.url, instance))
    assert again.tags["pgque/attempt"] == "2"
    with pytest.raises(LeaseLost):
        batch.ack()

    # The batch may be what kills them.
    die(client, instance, again, failure)
    assert "attempt 3 of 5 at" in evaluate(SENSOR, client.url, instance)


def test_the_last_attempt_is_not_made_at_once(client: Client, instance: dg.DagsterInstance) -> None:
    sensor = build_pgque_sensor([revenue], max_attempts=2)
    publish(client, ["a"])
    request = the_request(evaluate(sensor, client.url, instance))
    die(client, instance, request, dg.DagsterRunStatus.FAILURE)

    assert "attempt 2 of 2 at" in evaluate(sensor, client.url, instance)


def test_a_run_that_was_canceled_is_not_repeated_at_once(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    request = the_request(evaluate(SENSOR, client.url, instance))
    die(client, instance, request, dg.DagsterRunStatus.CANCELED)

    assert "was canceled, attempt 2 of 5 at" in evaluate(SENSOR, client.url, instance)


def die(
    client: Client,
    instance: dg.DagsterInstance,
    request: dg.RunRequest,
    status: dg.DagsterRunStatus,
) -> None:
    """Has a run claim its batch and end so, because its process died."""
    run = record_run(instance, revenue, client.url, request.tags, status)
    assert client.claim("orders", "revenue", owner=f"dagster run {run.run_id}") is not None
    instance.add_run_tags(run.run_id, {"pgque/died": run.run_id})


def test_runs_that_died_and_hold_the_places_of_the_next_one_are_named(
    client: Client, instance: dg.DagsterInstance
) -> None:
    sensor = build_pgque_sensor([revenue], max_attempts=5, backoff=timedelta(0))
    publish(client, ["a"])
    dead = []
    for _ in range(2):
        request = the_request(evaluate(sensor, client.url, instance))
        run = record_run(instance, revenue, client.url, request.tags, dg.DagsterRunStatus.STARTED)
        owner, ttl = f"dagster run {run.run_id}", timedelta(microseconds=1)
        assert client.claim("orders", "revenue", owner=owner, ttl=ttl)
        dead.append(run.run_id[:8])
    request = the_request(evaluate(sensor, client.url, instance))
    queued = dg.DagsterRunStatus.QUEUED
    last = record_run(instance, revenue, client.url, request.tags, queued)

    reason = str(evaluate(sensor, client.url, instance))

    assert f"run {last.run_id[:8]} is queued (" in reason
    assert "runs have lost the batch and still count towards Dagster's limits: " in reason
    assert all(run in reason for run in dead)
    assert "run_monitoring" in reason
