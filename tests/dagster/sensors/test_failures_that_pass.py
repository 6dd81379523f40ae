"""What passes by itself or by an administrator uses no attempt up; it is shown, and tried again."""

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster import ParquetBatchIOManager, SparkBatch, build_pgque_sensor, pgque_asset
from pgque_dagster.client import Client, ConnectionFailed
from pgque_dagster.client.errors import TargetRefused
from tests.client.consumer.support import expire_leases
from tests.dagster.support import materialize
from tests.support.dagster.sensing import evaluate, the_request
from tests.support.queues.events import publish
from tests.support.queues.sql import connect
from tests.support.servers.networks import network

NOW = timedelta(0)


def failing_by(error: Callable[[], Exception]) -> dg.AssetsDefinition:
    @pgque_asset(queue="orders", consumer="revenue", name="revenue")
    def revenue(batch: SparkBatch) -> int:
        raise error()

    return revenue


def denied() -> Exception:
    error = TargetRefused("public.t was refused its rows: permission denied for table t")
    error.__cause__ = psycopg.errors.InsufficientPrivilege("permission denied for table t")
    return error


def attempt(
    asset: dg.AssetsDefinition, client: Client, spark: SparkSession, instance: dg.DagsterInstance
) -> None:
    sensor = build_pgque_sensor([asset], max_attempts=2, backoff=NOW)
    request = the_request(evaluate(sensor, client.url, instance))
    tags = dict(request.tags)
    assert not materialize(asset, client.url, spark, tags=tags, instance=instance).success


def look(asset: dg.AssetsDefinition, client: Client, instance: dg.DagsterInstance) -> str:
    """What a sensor says that waits before the next run."""
    sensor = build_pgque_sensor([asset], max_attempts=2, backoff=timedelta(minutes=1))
    found = evaluate(sensor, client.url, instance)
    assert isinstance(found, str), found
    return found


def failing(client: Client) -> tuple[str, str]:
    (found,) = [each for each in client.health() if each.check == "failing_batch:revenue"]
    return found.status, found.detail


@pytest.mark.parametrize("error", [denied, lambda: ConnectionFailed("the target is away")])
def test_a_batch_that_fails_by_what_passes_is_tried_again_without_end(
    client: Client,
    spark: SparkSession,
    instance: dg.DagsterInstance,
    error: Callable[[], Exception],
) -> None:
    publish(client, ["a"])
    asset = failing_by(error)
    assert failing(client)[0] == "ok"
    for _ in range(4):
        attempt(asset, client, spark, instance)
    said = look(asset, client, instance)
    assert "failed, which does not count, again at" in said
    assert str(error()) in said
    status, detail = failing(client)
    assert status == "warning"
    assert "retried until it succeeds" in detail and str(error()) in detail
    assert [each.status for each in client.health() if each.check == "held_batch:revenue"] == ["ok"]

    with client.transaction() as db:
        db.execute("update pgque.held_batch set held_since = now() - interval '1 day'")
    attempt(asset, client, spark, instance)
    assert failing(client)[0] == "critical", "since the first failure, also while a run works"
    look(asset, client, instance)
    assert failing(client)[0] == "critical"

    def works(batch: SparkBatch) -> int:
        return batch.event_count

    mended = pgque_asset(queue="orders", consumer="revenue", name="revenue")(works)
    sensor = build_pgque_sensor([mended], max_attempts=2, backoff=NOW)
    tags = dict(the_request(evaluate(sensor, client.url, instance)).tags)
    assert materialize(mended, client.url, spark, tags=tags, instance=instance).success
    assert failing(client) == ("ok", "no batch waits for a temporary failure to end")


def test_the_waits_grow(client: Client, spark: SparkSession, instance: dg.DagsterInstance) -> None:
    publish(client, ["a"])
    asset = failing_by(denied)
    for minutes in (1, 2, 4, 8, 10, 10):
        attempt(asset, client, spark, instance)
        (at,) = re.findall(r"again at ([\d:]+) UTC", look(asset, client, instance))
        (active,) = client.consumers("orders")
        ended = datetime.now(UTC) - active.last_seen
        wait = datetime.strptime(at, "%H:%M:%S") - ended.replace(tzinfo=None)
        assert round(wait.seconds / 60) == minutes


def test_other_errors_between_count_as_before(
    client: Client, spark: SparkSession, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    passing, other = failing_by(denied), failing_by(lambda: ValueError("boom"))
    for asset in (passing, other, passing, passing):
        attempt(asset, client, spark, instance)
    assert "does not count" in look(passing, client, instance)
    attempt(other, client, spark, instance)
    assert "held after 2 attempts" in look(passing, client, instance)
    assert failing(client)[0] == "ok", "it is held"


@pytest.mark.parametrize("counts", [False, True])
def test_the_last_error_of_a_run_decides_if_its_step_is_executed_again(
    client: Client, spark: SparkSession, instance: dg.DagsterInstance, counts: bool
) -> None:
    publish(client, ["a"])
    errors = [denied(), ValueError("boom")]
    tries = iter(errors if counts else errors[::-1])

    @pgque_asset(
        queue="orders",
        consumer="revenue",
        name="revenue",
        retry_policy=dg.RetryPolicy(max_retries=1),
    )
    def revenue(batch: SparkBatch) -> int:
        raise next(tries)

    attempt(revenue, client, spark, instance)
    assert ("attempt 2 of 2" in look(revenue, client, instance)) is counts


def test_an_io_manager_that_cannot_store_for_now_uses_no_attempt_up(
    client: Client, spark: SparkSession, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    """Dagster calls it outside of the function. A file is where its folder should be."""
    publish(client, ["a"])

    @pgque_asset(queue="orders", consumer="revenue", name="revenue", io_manager_key="lake")
    def revenue(batch: SparkBatch) -> DataFrame:
        return batch.events(["ev_id"])

    def run() -> bool:
        sensor = build_pgque_sensor([revenue], max_attempts=2, backoff=NOW)
        tags = dict(the_request(evaluate(sensor, client.url, instance)).tags)
        lake = ParquetBatchIOManager(base_dir=str(tmp_path / "lake"))
        resources = {"lake": lake}
        return materialize(
            revenue, client.url, spark, tags=tags, instance=instance, resources=resources
        ).success

    (tmp_path / "lake").write_text("in the way")
    assert [run() for _ in range(3)] == [False] * 3
    assert "StorageFailed" in look(revenue, client, instance)
    assert failing(client)[0] == "warning"
    (tmp_path / "lake").unlink()
    assert run()
    assert failing(client)[0] == "ok"


def test_a_source_that_is_away_when_the_lease_ends_uses_no_attempt_up(
    client: Client, spark: SparkSession, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])

    @pgque_asset(queue="orders", consumer="revenue", name="revenue", lease_ttl=timedelta(seconds=1))
    def revenue(batch: SparkBatch) -> int:
        net.state = "down"
        keeper = batch.claim.keeper
        while True:
            keeper.check()
            time.sleep(0.1)

    sensor = build_pgque_sensor([revenue], max_attempts=1, backoff=NOW)
    tags = dict(the_request(evaluate(sensor, client.url, instance)).tags)
    with network(client.url) as net:
        url = net.url(client.url)
        assert not materialize(revenue, url, spark, tags=tags, instance=instance).success
    with connect(client.url) as db:
        expire_leases(db)
    assert the_request(evaluate(sensor, client.url, instance))
    assert "LeaseLost" in look(revenue, client, instance)
