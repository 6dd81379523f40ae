"""An attempt is a run that claimed its batch. After the last one, the batch is held or given up.

Dagster says whether a run lives, the lease says who works. Clocks of hosts do not count.
"""

import dagster as dg
import psycopg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import SparkBatch, build_pgque_sensor, pgque_asset
from pgque_dagster.client import Client
from tests.conftest import NewDatabase
from tests.dagster.sensors.attempts import (
    FAILURE,
    GIVING_UP,
    NOW,
    ONCE,
    SENSOR,
    STARTED,
    attempt,
    fail_after_claim,
    lose_lease,
    requested,
)
from tests.dagster.support import materialize
from tests.support.dagster.assets import revenue
from tests.support.dagster.sensing import evaluate, record_run, the_request
from tests.support.queues.events import claim, publish


@dg.resource
def broken(context: dg.InitResourceContext) -> None:
    raise RuntimeError("no such host")


@pgque_asset(queue="orders", consumer="revenue", required_resource_keys={"warehouse"})
def failing(batch: SparkBatch) -> int:
    raise ValueError("boom")


def count(batch: SparkBatch) -> int:
    return batch.event_count


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


def test_a_failed_batch_is_tried_again_under_a_new_key_then_held_and_mended_by_hand(
    client: Client, spark: SparkSession, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    sensor = build_pgque_sensor([failing], max_attempts=2, backoff=NOW)
    keys = []
    for _ in range(2):
        request = the_request(evaluate(sensor, client.url, instance))
        keys.append(str(request.run_key)[-2:])
        run(failing, request, client, spark, instance)

    held = evaluate(sensor, client.url, instance)
    assert keys == [":1", ":2"]
    assert "held after 2 attempts" in held
    assert ": boom; correct the cause" in held, "the reason of the last run is told"
    assert "materialize failing by hand" in held
    assert client.lease_info("orders", "revenue") is not None
    mended = pgque_asset(queue="orders", consumer="revenue", name="failing")(count)
    assert materialize(mended, client.url, spark, instance=instance).success
    assert "no batch yet, " in evaluate(sensor, client.url, instance)


def test_only_runs_that_claimed_the_batch_use_attempts_up(
    client: Client, spark: SparkSession, instance: dg.DagsterInstance
) -> None:
    """Those that the launcher lost and somebody canceled, or whose resource failed, do not."""
    publish(client, ["a"])
    sensor = build_pgque_sensor([failing], max_attempts=2, backoff=NOW, on_exhausted="dead_letter")
    for _ in range(3):
        tags = the_request(evaluate(sensor, client.url, instance)).tags
        record_run(instance, revenue, client.url, tags, dg.DagsterRunStatus.CANCELED)
    for warehouse in (broken, "there", broken, "there"):
        request = the_request(evaluate(sensor, client.url, instance))
        run(failing, request, client, spark, instance, warehouse=warehouse)

    assert "given up after 2 attempts" in evaluate(sensor, client.url, instance)
    (letters,) = client.dead_letter_counts("orders")
    assert letters.count == 1


def test_the_run_key_is_new_even_where_an_old_run_was_deleted(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    first, _ = [requested(client, instance, FAILURE) for _ in range(2)]
    instance.delete_run(first.run_id)

    assert str(the_request(evaluate(SENSOR, client.url, instance)).run_key).endswith(":3")


def test_a_held_batch_is_recorded_once_and_again_after_a_run_by_hand_that_failed(
    client: Client, instance: dg.DagsterInstance
) -> None:
    def held() -> tuple[str, str]:
        (check,) = [each for each in client.health() if each.check == "held_batch:revenue"]
        return check.status, check.detail

    publish(client, ["a"])
    fail_after_claim(client, instance)

    reasons, written = [], []
    with psycopg.connect(client.url, autocommit=True) as db:
        for _ in range(2):
            reasons.append(evaluate(ONCE, client.url, instance))
            written += db.execute("select xmin::text from pgque.held_batch").fetchall()

    assert "held after 1 attempt," in reasons[0]
    assert "its process ended without a message" in reasons[0]
    assert reasons[0] == reasons[1]
    assert len(written) == 2 and written[0] == written[1]
    assert held()[0] == "critical"
    by_hand = claim(client)
    assert held()[0] == "ok"
    by_hand.release()
    assert "held after 1 attempt," in evaluate(ONCE, client.url, instance)
    assert "materialize revenue by hand: use Materialize on its page" in held()[1]


def test_an_exhausted_batch_becomes_dead_letters_where_the_policy_says_so_and_the_next_follows(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a", "b"])
    run = fail_after_claim(client, instance)

    reason = evaluate(GIVING_UP, client.url, instance)

    assert reason.endswith("its 2 events are dead letters")
    (letters,) = client.dead_letter_counts("orders")
    assert letters.count == 2
    assert f"after 1 attempt, the last in run {run.run_id[:8]}" in str(letters.reason)
    assert client.lease_info("orders", "revenue") is None
    publish(client, ["c"])
    assert attempt(evaluate(GIVING_UP, client.url, instance)) == "1"


@pytest.mark.parametrize(("epoch", "counts"), [(None, True), ("7", False)])
def test_runs_without_an_epoch_count_as_attempts_and_those_of_an_earlier_database_do_not(
    client: Client, instance: dg.DagsterInstance, epoch: str | None, counts: bool
) -> None:
    publish(client, ["a"])
    tags = dict(the_request(evaluate(GIVING_UP, client.url, instance)).tags)
    del tags["pgque/epoch"]
    record_run(
        instance, revenue, client.url, tags | ({"pgque/epoch": epoch} if epoch else {}), FAILURE
    )

    found = evaluate(GIVING_UP, client.url, instance)

    assert ("given up after 1 attempt" in found) is counts
    assert isinstance(found, str) is counts


@pytest.mark.parametrize("is_taken_over", [False, True])
def test_nothing_is_given_up_while_a_run_that_claimed_it_is_recorded_as_started(
    client: Client, instance: dg.DagsterInstance, is_taken_over: bool
) -> None:
    publish(client, ["a"])
    attempts = 2 if is_taken_over else 1
    sensor = build_pgque_sensor(
        [revenue], max_attempts=attempts, on_exhausted="dead_letter", backoff=NOW
    )
    lost = requested(client, instance, STARTED)
    lose_lease(client, lost)
    if is_taken_over:
        fail_after_claim(client, instance)

    reason = evaluate(sensor, client.url, instance)

    assert f"run {lost.run_id[:8]} is still recorded as started" in reason
    assert client.dead_letter_counts("orders") == []
    instance.report_run_canceled(lost)
    assert f"given up after {attempts} attempt" in evaluate(sensor, client.url, instance)


def test_a_run_that_died_with_its_lease_is_followed_by_the_next_attempt(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    lose_lease(client, requested(client, instance, STARTED))

    assert attempt(evaluate(SENSOR, client.url, instance)) == "2"
    fail_after_claim(client, instance)
    # The dead run, whose batch was taken over, does not delay it either.
    again = the_request(evaluate(SENSOR, client.url, instance))
    assert (again.tags["pgque/attempt"], str(again.run_key)[-2:]) == ("3", ":3")


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
    assert attempt(evaluate(SENSOR, client.url, instance)) == "2"


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


def test_runs_for_another_database_count_for_nothing(
    new_database: NewDatabase, client: Client, instance: dg.DagsterInstance
) -> None:
    """In a new database batch ids start again, but Dagster's instance still has the old runs."""
    publish(client, ["tried and failed"])
    first = fail_after_claim(client, instance)
    with new_database() as url, Client(url) as reborn:
        reborn.create_queue("orders", ticker_max_lag="0")
        assert "registered at the first" in evaluate(GIVING_UP, reborn.url, instance)
        publish(reborn, ["never tried"])
        again = the_request(evaluate(GIVING_UP, reborn.url, instance))

        assert again.tags["pgque/batch_id"] == first.tags["pgque/batch_id"]
        assert again.tags["pgque/attempt"] == "1"
        assert (
            again.run_key
            != f"{client.incarnation()}:orders:revenue:{again.tags['pgque/batch_id']}:1"
        )
        assert reborn.dead_letter_counts("orders") == []


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

    (check,) = [each for each in client.health() if each.check == "held_batch:revenue"]
    assert check.status == "ok"
    assert str(fail().run_key).endswith(":2")
    assert "held after 1 attempt," in evaluate(sensor, client.url, instance)
    assert "held after 1 attempt," in evaluate(sensor, client.url, instance)
