"""`build_pgque_sensor`: one run per batch, one at a time, or in plain words why there is none."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import dagster as dg
import psycopg
import pytest
from click.testing import CliRunner

from pgque_dagster import SparkBatch, build_pgque_sensor, pgque_asset
from pgque_dagster.cli import main
from pgque_dagster.client import Client
from tests.support.dagster.assets import revenue
from tests.support.dagster.sensing import evaluate, record_run, the_request
from tests.support.queues.events import claim, make_queue, publish, tick

IDLE = "orders/revenue: no batch yet, no event waits"


SENSOR = build_pgque_sensor([revenue])


def requested(
    client: Client, instance: dg.DagsterInstance, status: dg.DagsterRunStatus
) -> dg.DagsterRun:
    request = the_request(evaluate(SENSOR, client.url, instance))
    return record_run(instance, revenue, client.url, request.tags, status)


def test_a_backlog_of_ticks_is_one_batch_which_gets_one_run_for_its_asset(
    client: Client, instance: dg.DagsterInstance
) -> None:
    assert evaluate(SENSOR, client.url, instance) == IDLE
    for _ in range(5):
        publish(client, ["a"])

    request = the_request(evaluate(SENSOR, client.url, instance))

    batch = claim(client)
    assert len(batch.events()) == 5
    assert request.run_key == f"{client.incarnation()}:orders:revenue:{batch.batch_id}:1"
    assert request.asset_selection == [revenue.key]
    assert request.tags["dagster/max_retries"] == "0"


def test_ticks_without_events_are_finished_without_a_run(
    client: Client, instance: dg.DagsterInstance
) -> None:
    for _ in range(3):
        tick(client)

    reason = evaluate(build_pgque_sensor([revenue], min_events=0), client.url, instance)

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


def test_events_wait_for_more_or_for_a_tick(client: Client, instance: dg.DagsterInstance) -> None:
    sensor = build_pgque_sensor([revenue], min_events=3, max_age=timedelta(hours=1))
    client.send("orders", "a")
    at_once = build_pgque_sensor([revenue], max_age=timedelta(0))
    unticked = evaluate(at_once, client.url, instance)
    publish(client, ["b"])
    early = evaluate(sensor, client.url, instance)
    publish(client, ["c"])

    assert "orders/revenue: no batch yet, up to 1 events wait for a tick, the first for" in unticked
    assert early == (
        "orders/revenue: no batch yet, up to 2 events wait: it is opened at min_events=3, or when "
        "the oldest has waited max_age=1:00:00"
    )
    assert the_request(evaluate(sensor, client.url, instance))


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (dg.DagsterRunStatus.NOT_STARTED, "is not started ("),
        (dg.DagsterRunStatus.QUEUED, "is queued ("),
        (dg.DagsterRunStatus.STARTING, "is starting ("),
        (dg.DagsterRunStatus.STARTED, "is started ("),
        (dg.DagsterRunStatus.CANCELING, "is canceling ("),
    ],
)
def test_a_run_that_has_not_claimed_its_batch_yet_gets_no_rival(
    client: Client, instance: dg.DagsterInstance, status: dg.DagsterRunStatus, told: str
) -> None:
    """It waits for the launcher, for its pool or for its session, however long that takes."""
    publish(client, ["a"])
    run = requested(client, instance, status)

    assert f"run {run.run_id[:8]} {told}" in evaluate(SENSOR, client.url, instance)


def test_a_run_that_works_on_the_batch_is_named_with_its_age_and_the_end_of_its_lease(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    run = requested(client, instance, dg.DagsterRunStatus.STARTED)
    batch = client.claim("orders", "revenue", owner=f"dagster run {run.run_id}")
    assert batch is not None

    working = evaluate(SENSOR, client.url, instance)
    instance.report_run_failed(run)
    failed = evaluate(SENSOR, client.url, instance)

    assert re.fullmatch(
        rf"batch {batch.batch_id} of orders/revenue: run {run.run_id[:8]} is working on it "
        r"\(\d+ s, lease until \d\d:\d\d:\d\d UTC\)",
        str(working),
    )
    assert f'is leased by "dagster run {run.run_id}" until' in failed


def test_a_new_consumer_is_registered_at_the_first_tick_of_a_new_queue(
    client: Client, instance: dg.DagsterInstance
) -> None:
    client.unregister_consumer("orders", "revenue", skip=True)
    publish(client, ["early"])

    assert "registered at the first tick" in evaluate(SENSOR, client.url, instance)
    assert [event.payload for event in claim(client).events()] == ["early"]


def test_a_new_consumer_of_an_old_queue_begins_at_its_last_tick(
    client: Client, instance: dg.DagsterInstance, sql: Callable[[str], None]
) -> None:
    client.unregister_consumer("orders", "revenue", skip=True)
    publish(client, ["before it was there"])
    sql("update pgque.queue set queue_switch_time = now() - interval '2 hours'")

    assert "registered at the last tick" in evaluate(SENSOR, client.url, instance)
    assert client.claim("orders", "revenue", owner="a test") is None


def test_a_consumer_that_was_removed_is_not_registered_again_behind_ones_back(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    requested(client, instance, dg.DagsterRunStatus.FAILURE)
    client.unregister_consumer("orders", "revenue", skip=True)

    reason = evaluate(SENSOR, client.url, instance)

    assert "orders/revenue: the consumer was removed from its queue" in reason
    assert "pgque register orders revenue --start-at earliest" in reason
    assert client.consumers("orders") == []


def test_the_advice_for_a_queue_that_was_created_again_skips_no_event(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    requested(client, instance, dg.DagsterRunStatus.FAILURE)
    client.drop_queue("orders", force=True)
    client.create_queue("orders")
    publish(client, ["first of the new queue"])

    reason = evaluate(SENSOR, client.url, instance)
    (advice,) = re.findall("`pgque (.*?)`", reason)
    CliRunner().invoke(main, advice.split(), env={"PGQUE_URL": client.url})

    assert [event.payload for event in claim(client).events()] == ["first of the new queue"]


def test_a_database_or_a_lock_that_is_away_skips_the_evaluation_with_the_reason(
    client: Client, instance: dg.DagsterInstance
) -> None:
    away = evaluate(SENSOR, "postgresql://nobody@127.0.0.1:1/none", instance)
    publish(client, ["a"])
    impatient = client.url + ("&" if "?" in client.url else "?") + "options=-clock_timeout%3D100ms"
    with psycopg.connect(client.url) as holder:
        holder.execute("lock table pgque.position_log in access exclusive mode")
        locked = evaluate(SENSOR, impatient, instance)

    assert "Check that the server runs" in away
    assert "lock timeout" in locked


def test_a_connection_that_broke_between_evaluations_is_made_again(
    client: Client, instance: dg.DagsterInstance
) -> None:
    evaluate(SENSOR, client.url, instance)
    with psycopg.connect(client.url, autocommit=True) as other:
        other.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid()"
        )
    with Client(client.url) as client_again:
        publish(client_again, ["a"])

    assert len(evaluate(SENSOR, client.url, instance)) == 1


def test_a_consumer_in_trouble_does_not_hold_up_the_others(
    client: Client, instance: dg.DagsterInstance
) -> None:
    @pgque_asset(queue="odrers")
    def misspelt(batch: SparkBatch) -> None:
        return None

    publish(client, ["a"])
    sensor = build_pgque_sensor([misspelt, revenue])

    assert len(evaluate(sensor, client.url, instance)) == 1
    client.claim("orders", "revenue", owner="a run of another instance")
    reason = evaluate(sensor, client.url, instance)
    assert 'odrers/misspelt: queue "odrers" does not exist' in reason
    assert "If it is for replicas, the sensor odrers_capture creates it" in reason
    assert 'is leased by "a run of another instance" until' in reason


@dg.asset
def plain() -> None:
    return None


@pytest.mark.parametrize(
    ("assets", "options", "words"),
    [
        ([revenue, revenue], {}, "orders/revenue"),
        ([plain], {}, "plain consumes no queue"),
        ([revenue], {"max_attempts": 0}, "a sensor's "),
        ([revenue], {"max_events": 0}, "a sensor's "),
        ([revenue], {"max_events": 2**31}, "max_events"),
        ([revenue], {"max_events": 1.5}, "max_events"),
        ([revenue], {"max_age": timedelta(days=366)}, "max_age"),
        ([revenue], {"backoff": timedelta(days=366)}, "backoff"),
        ([revenue], {"minimum_interval_seconds": 0}, "minimum_interval_seconds"),
        ([revenue], {"min_events": -1}, "a sensor's "),
        ([revenue], {"min_events": 11, "max_events": 10}, "a sensor's "),
        ([revenue], {"max_age": timedelta(seconds=-1)}, "a sensor's "),
        ([revenue], {"backoff": timedelta(seconds=-1)}, "a sensor's "),
        ([revenue], {"on_exhausted": "drop"}, "a sensor's "),
        ([revenue], {"tick_wait": timedelta(seconds=-1)}, "tick_wait is "),
        ([revenue], {"max_age": "10s"}, "max_age is '10s': it must be a timedelta"),
        ([revenue], {"tick_wait": 5}, "tick_wait is 5: it must be a timedelta"),
        (revenue, {}, r"pass \[revenue\]"),
        ([revenue], {"tick_wait": timedelta(seconds=31)}, "tick_wait is "),
    ],
)
def test_what_makes_no_sense_is_refused_when_the_sensor_is_defined(
    assets: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=words):
        build_pgque_sensor(assets, **options)
