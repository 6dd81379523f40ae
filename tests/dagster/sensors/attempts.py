"""Attempts at batches as the sensor requests them, and what becomes of their runs."""

from datetime import timedelta

import dagster as dg

from pgque_dagster import build_pgque_sensor
from pgque_dagster.client import Client
from tests.support.dagster.assets import revenue
from tests.support.dagster.sensing import evaluate, record_run, the_request

FAILURE = dg.DagsterRunStatus.FAILURE
STARTED = dg.DagsterRunStatus.STARTED
NOW = timedelta(0)
SENSOR = build_pgque_sensor([revenue], backoff=NOW)
ONCE = build_pgque_sensor([revenue], max_attempts=1)
GIVING_UP = build_pgque_sensor([revenue], max_attempts=1, backoff=NOW, on_exhausted="dead_letter")


def requested(
    client: Client,
    instance: dg.DagsterInstance,
    status: dg.DagsterRunStatus,
    sensor: dg.SensorDefinition = SENSOR,
) -> dg.DagsterRun:
    request = the_request(evaluate(sensor, client.url, instance))
    return record_run(instance, revenue, client.url, request.tags, status)


def lose_lease(client: Client, run: dg.DagsterRun) -> None:
    owner, ttl = f"dagster run {run.run_id}", timedelta(microseconds=1)
    assert client.claim("orders", "revenue", owner=owner, ttl=ttl)


def fail_after_claim(client: Client, instance: dg.DagsterInstance) -> dg.DagsterRun:
    run = requested(client, instance, FAILURE)
    batch = client.claim("orders", "revenue", owner=f"dagster run {run.run_id}")
    assert batch is not None
    batch.release()
    return run


def attempt(found: list[dg.RunRequest] | str) -> str:
    return the_request(found).tags["pgque/attempt"]
