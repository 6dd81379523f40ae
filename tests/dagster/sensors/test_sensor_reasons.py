"""The skip reasons say in plain words why there is no run."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import dagster as dg
import psycopg
import pytest

from pgque_dagster import PgqueResource, SparkBatch, build_pgque_sensor, pgque_asset
from pgque_dagster.client import Client
from tests.support.events import claim, publish
from tests.support.sensing import evaluate, record_run, the_request


@pgque_asset(queue="orders")
def revenue(batch: SparkBatch) -> int:
    return batch.event_count


SENSOR = build_pgque_sensor([revenue])


def requested_run(
    client: Client, instance: dg.DagsterInstance, status: dg.DagsterRunStatus
) -> dg.DagsterRun:
    request = the_request(evaluate(SENSOR, client.url, instance))
    return record_run(instance, revenue, client.url, request.tags, status)


def attempted_run(client: Client, instance: dg.DagsterInstance) -> dg.DagsterRun:
    """A run that claimed its batch and failed."""
    run = requested_run(client, instance, dg.DagsterRunStatus.FAILURE)
    claim(client).release()
    return run


def test_a_run_that_works_on_the_batch_is_named_with_its_age_and_the_end_of_its_lease(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    run = requested_run(client, instance, dg.DagsterRunStatus.STARTED)
    batch = client.claim("orders", "revenue", owner=f"dagster run {run.run_id}")
    assert batch is not None

    reason = evaluate(SENSOR, client.url, instance)

    assert re.fullmatch(
        rf"batch {batch.batch_id} of orders/revenue: run {run.run_id[:8]} is working on it "
        r"\(\d+ s, lease until \d\d:\d\d:\d\d UTC\)",
        str(reason),
    )


def test_a_run_that_has_not_begun_is_waited_for(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    run = requested_run(client, instance, dg.DagsterRunStatus.NOT_STARTED)

    assert f"run {run.run_id[:8]} is not started (" in evaluate(SENSOR, client.url, instance)


def test_a_run_that_failed_while_its_lease_lives_is_not_followed_before_the_lease_ends(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    run = requested_run(client, instance, dg.DagsterRunStatus.FAILURE)
    client.claim("orders", "revenue", owner=f"dagster run {run.run_id}")

    assert f'is leased by "dagster run {run.run_id}" until' in evaluate(
        SENSOR, client.url, instance
    )


def test_a_consumer_that_was_removed_is_not_registered_again_behind_ones_back(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    requested_run(client, instance, dg.DagsterRunStatus.FAILURE)
    client.unregister_consumer("orders", "revenue")

    reason = evaluate(SENSOR, client.url, instance)

    assert "orders/revenue: the consumer was removed from its queue" in reason
    assert "pgque register orders revenue" in reason
    assert client.consumers("orders") == []


def test_a_new_consumer_is_registered(client: Client, instance: dg.DagsterInstance) -> None:
    client.unregister_consumer("orders", "revenue")

    assert "registered at the first tick" in evaluate(SENSOR, client.url, instance)
    assert [consumer.name for consumer in client.consumers("orders")] == ["revenue"]


def test_what_was_sent_to_a_new_queue_before_its_consumer_was_registered_is_delivered(
    client: Client, instance: dg.DagsterInstance
) -> None:
    client.unregister_consumer("orders", "revenue")
    publish(client, ["early"])
    evaluate(SENSOR, client.url, instance)

    assert [event.payload for event in claim(client).events()] == ["early"]


def test_a_new_consumer_of_an_old_queue_begins_at_its_last_tick(
    client: Client, instance: dg.DagsterInstance, sql: Callable[[str], None]
) -> None:
    client.unregister_consumer("orders", "revenue")
    publish(client, ["before it was there"])
    sql("update pgque.queue set queue_switch_time = now() - interval '2 hours'")

    assert "registered at the last tick" in evaluate(SENSOR, client.url, instance)
    assert client.claim("orders", "revenue", owner="a test") is None


def test_a_connection_that_broke_between_evaluations_is_made_anew(
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


def test_a_lock_that_is_not_got_in_time_is_a_reason_and_no_failed_tick(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    impatient = client.url + ("&" if "?" in client.url else "?") + "options=-clock_timeout%3D100ms"
    with psycopg.connect(client.url) as holder:
        holder.execute("lock table pgque.position_log in access exclusive mode")

        reason = evaluate(SENSOR, impatient, instance)

    assert "lock timeout" in reason


def test_a_held_batch_is_given_to_nobody_until_it_is_mended(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    once = build_pgque_sensor([revenue], max_attempts=1)
    attempted_run(client, instance)

    assert "held after 1 attempt," in evaluate(once, client.url, instance)
    assert client.lease_info("orders", "revenue") is not None


def test_an_exhausted_batch_becomes_dead_letters_where_the_policy_says_so(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a", "b"])
    giving_up = build_pgque_sensor([revenue], max_attempts=1, on_exhausted="dead_letter")
    run = attempted_run(client, instance)

    reason = evaluate(giving_up, client.url, instance)

    assert reason.endswith("its 2 events are dead letters")
    (letters,) = client.dead_letter_counts("orders")
    assert letters.count == 2
    assert f"after 1 attempt, the last in run {run.run_id[:8]}" in str(letters.reason)
    assert client.lease_info("orders", "revenue") is None


def test_what_follows_a_given_up_batch_gets_its_run(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    giving_up = build_pgque_sensor([revenue], max_attempts=1, on_exhausted="dead_letter")
    attempted_run(client, instance)
    evaluate(giving_up, client.url, instance)
    publish(client, ["b"])

    assert len(evaluate(giving_up, client.url, instance)) == 1


def test_a_run_that_still_works_on_its_last_attempt_is_not_given_up(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    giving_up = build_pgque_sensor([revenue], max_attempts=1, on_exhausted="dead_letter")
    requested_run(client, instance, dg.DagsterRunStatus.STARTED)

    assert "is started" in evaluate(giving_up, client.url, instance)
    assert client.dead_letter_counts("orders") == []


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"max_runs": 0},
        {"max_events": 0},
        {"min_events": -1},
        {"min_events": 11, "max_events": 10},
        {"max_age": timedelta(seconds=-1)},
        {"backoff": timedelta(seconds=-1)},
        {"on_exhausted": "drop"},
    ],
    ids=str,
)
def test_an_option_out_of_range_is_refused_when_the_sensor_is_defined(
    options: dict[str, Any],
) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="a sensor's "):
        build_pgque_sensor([revenue], **options)


def test_a_queue_that_stops_ticking_makes_events_wait_and_no_error(
    client: Client, instance: dg.DagsterInstance
) -> None:
    client.send("orders", "a")
    waiting = build_pgque_sensor([revenue], max_age=timedelta(0))

    reason = evaluate(waiting, client.url, instance)

    assert "orders/revenue: no batch yet, up to 1 events wait for a tick, the first for " in str(
        reason
    )
    assert PgqueResource(url=client.url).health() != []
