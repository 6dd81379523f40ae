"""`pgque worker` runs batches as soon as they are due, in one process, each as a Dagster run."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import dagster as dg
import psycopg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import PgqueResource, SparkBatch, build_pgque_sensor, pgque_asset
from pgque_dagster.client import Client, Limits
from pgque_dagster.client.holder import Holder
from pgque_dagster.project.consumers import consumers_of
from pgque_dagster.sensors.attempts import AttemptPolicy
from pgque_dagster.sensors.run_requests import BatchPolicy
from pgque_dagster.worker.worker import Worker
from tests.dagster.support import SessionHolder, StoringIOManager
from tests.support.events import publish
from tests.support.sensing import evaluate

PATIENCE = 240.0
POLICY = BatchPolicy(Limits(min_count=1), AttemptPolicy(2, timedelta(0)))
FOR_EVER = timedelta(hours=1)


@pgque_asset(queue="orders")
def revenue(batch: SparkBatch) -> int:
    return batch.events().count()


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield instance


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[str], bool]:
    """Tells whether the worker has logged some words."""
    caplog.set_level(logging.INFO, "pgque")
    return lambda words: words in caplog.text


def eventually(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"not within {PATIENCE} s: {what}"
        time.sleep(0.05)


def is_consumed(client: Client) -> bool:
    return not any(info.batch_id or info.pending_events for info in client.consumers("orders"))


def is_claimed(client: Client, holder: str = "revenue") -> bool:
    info = client.lease_info("orders", holder)
    return info is not None and info.is_live


def is_listening(client: Client) -> bool:
    with psycopg.connect(client.url) as db:
        row = db.execute(
            "select count(*) from pg_stat_activity where datname = current_database() "
            "and query ilike 'listen%' and state = 'idle'"
        ).fetchone()
    return row is not None and row[0] == 1


def statuses(instance: dg.DagsterInstance) -> list[str]:
    return sorted(run.status.value for run in instance.get_runs())


@contextmanager
def working(
    asset: dg.AssetsDefinition,
    url: str,
    spark: SparkSession,
    instance: dg.DagsterInstance,
    *,
    poll: timedelta = timedelta(seconds=0.2),
    stored: StoringIOManager | None = None,
    policy: BatchPolicy = POLICY,
) -> Iterator[Worker]:
    """Runs a worker in a thread of this process while the block runs."""
    resource = PgqueResource(url=url)
    definitions = dg.Definitions(
        assets=[asset],
        resources={
            "pgque": resource,
            "pyspark": SessionHolder(spark),
            "io_manager": stored or StoringIOManager(),
        },
    )
    worker = Worker(
        definitions.resolve_implicit_global_asset_job_def(),
        consumers_of([asset]),
        instance,
        resource,
        policy,
        poll=poll,
    )
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_a_batch_becomes_a_recorded_run_with_its_materialization_and_is_acked(
    client: Client, spark: SparkSession, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a", "b"])
    batch_id = client.next_batch("orders", "revenue")
    stored = StoringIOManager()

    with working(revenue, client.url, spark, instance, stored=stored):
        eventually(lambda: is_consumed(client), "the batch is acked")

    (run,) = instance.get_runs()
    assert run.status == dg.DagsterRunStatus.SUCCESS
    assert run.tags["pgque/batch_id"] == str(batch_id)
    assert run.tags["pgque/attempt"] == "1"
    assert "pgque/worker" in run.tags
    event = instance.get_latest_materialization_event(revenue.key)
    assert event is not None and event.run_id == run.run_id
    assert stored.stored == [2]


def test_a_tick_wakes_the_worker_also_after_its_connections_broke(
    client: Client, spark: SparkSession, instance: dg.DagsterInstance
) -> None:
    with working(revenue, client.url, spark, instance, poll=FOR_EVER):
        eventually(lambda: is_listening(client), "the worker listens")
        publish(client, ["a"])
        eventually(lambda: statuses(instance) == ["SUCCESS"], "a run")
        with psycopg.connect(client.url, autocommit=True) as other:
            other.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()"
            )
        with Client(client.url) as client_again:
            publish(client_again, ["a"])
            eventually(lambda: is_consumed(client_again), "the batch is acked")


def test_a_failed_batch_is_tried_again_and_then_held(
    client: Client,
    spark: SparkSession,
    instance: dg.DagsterInstance,
    said: Callable[[str], bool],
) -> None:
    @pgque_asset(queue="orders", consumer="revenue")
    def failing(batch: SparkBatch) -> int:
        raise ValueError("boom")

    publish(client, ["a"])
    with working(failing, client.url, spark, instance):
        eventually(lambda: said("held after 2 attempts"), "the batch is held")

    assert statuses(instance) == ["FAILURE", "FAILURE"]
    assert not is_consumed(client)


def test_a_batch_that_another_run_has_claimed_is_left_alone(
    client: Client,
    spark: SparkSession,
    instance: dg.DagsterInstance,
    said: Callable[[str], bool],
) -> None:
    publish(client, ["a"])
    batch = client.claim("orders", "revenue", owner="a run of another instance")
    assert batch is not None
    with working(revenue, client.url, spark, instance):
        eventually(lambda: said('is leased by "a run of another instance"'), "it says so")
        assert statuses(instance) == []
        batch.release()

        eventually(lambda: is_consumed(client), "the batch is taken once it is free")


def test_the_sensor_leaves_its_batch_to_a_worker_which_finishes_it_when_it_is_stopped(
    client: Client, spark: SparkSession, instance: dg.DagsterInstance
) -> None:
    may_end = threading.Event()

    @pgque_asset(queue="orders", consumer="revenue")
    def slow(batch: SparkBatch) -> int:
        assert may_end.wait(PATIENCE)
        return batch.event_count

    publish(client, ["a"])
    with working(slow, client.url, spark, instance) as worker:
        eventually(lambda: is_claimed(client), "the worker works")
        assert "is working on it" in evaluate(build_pgque_sensor([slow]), client.url, instance)
        worker.stop()
        publish(client, ["b"])
        may_end.set()

    assert statuses(instance) == ["SUCCESS"]
    assert client.lease_info("orders", "revenue") is None
    assert not is_consumed(client)


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_batch_that_is_given_back_is_free_at_once_and_its_run_cannot_ack_it(
    client: Client, spark: SparkSession, instance: dg.DagsterInstance, is_shared: bool
) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    @pgque_asset(queue="orders", consumer="revenue")
    def slow(batch: SparkBatch) -> int:
        has_begun.set()
        assert may_end.wait(PATIENCE)
        return batch.event_count

    if is_shared:
        client.run(Holder("orders", "revenue", "1").register_subconsumer())
    holder = "revenue.1" if is_shared else "revenue"
    publish(client, ["a"])
    with working(slow, client.url, spark, instance) as worker:
        assert has_begun.wait(PATIENCE)
        worker.stop()
        worker.release()
        assert not is_claimed(client, holder)
        assert statuses(instance) == ["CANCELED"]
        may_end.set()

    info = client.lease_info("orders", holder)
    assert info is not None and not info.is_live


def test_workers_that_are_told_so_work_on_batches_of_one_consumer_at_a_time(
    client: Client, spark: SparkSession, instance: dg.DagsterInstance
) -> None:
    both_at_work = threading.Barrier(2)

    @pgque_asset(queue="orders", consumer="revenue")
    def slow(batch: SparkBatch) -> int:
        both_at_work.wait(PATIENCE)
        return batch.event_count

    for text in ("a", "b"):
        publish(client, [text])
    two = BatchPolicy(Limits(min_count=1), AttemptPolicy(9, timedelta(0)), parallel_runs=2)
    with (
        working(slow, client.url, spark, instance, policy=two),
        working(slow, client.url, spark, instance, policy=two),
    ):
        eventually(lambda: is_consumed(client), "both batches are acked")

    # A run that started at the same moment with the same batch was skipped.
    assert set(statuses(instance)) == {"SUCCESS"}
    assert {run.tags["pgque/subconsumer"] for run in instance.get_runs()} == {"1", "2"}


def test_a_failure_sensor_sees_the_runs_if_it_monitors_all_code_locations(
    client: Client, spark: SparkSession, instance: dg.DagsterInstance
) -> None:
    @pgque_asset(queue="orders", consumer="revenue")
    def failing(batch: SparkBatch) -> None:
        raise RuntimeError("the asset fails")

    def seen_by(monitor_all: bool) -> list[str]:
        seen: list[str] = []

        @dg.run_failure_sensor(monitor_all_code_locations=monitor_all)
        def note(context: dg.RunFailureSensorContext) -> None:
            seen.append(context.dagster_run.run_id)

        before_any = '{"__class__": "RunStatusSensorCursor", "record_id": -1}'
        context = dg.build_sensor_context(instance, cursor=before_any, repository_name="shop")
        note.evaluate_tick(context)
        return seen

    publish(client, ["a"])
    once = BatchPolicy(Limits(min_count=1), AttemptPolicy(1, timedelta(0)))
    with working(failing, client.url, spark, instance, policy=once):
        eventually(lambda: statuses(instance) == ["FAILURE"], "the run failed")

    (run,) = instance.get_runs()
    assert seen_by(monitor_all=True) == [run.run_id]
    assert seen_by(monitor_all=False) == []
