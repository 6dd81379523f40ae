"""Dagster starts a step again: no batch is worked on twice at once, and each is acked once."""

from collections.abc import Iterator
from datetime import timedelta
from uuid import uuid4

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import PgqueResource, SparkBatch, build_pgque_sensor, pgque_asset
from pgque_dagster.client import Client
from pgque_dagster.client.calls.states import ConsumerState, consumer_states
from pgque_dagster.client.models import Limits
from pgque_dagster.keys import BATCH_ID
from tests.dagster.support import SessionHolder, StoringIOManager, materialize
from tests.support.events import publish
from tests.support.sensing import evaluate, the_request

AT_ONCE = dg.RetryPolicy(max_retries=2)


def state_of(client: Client) -> ConsumerState:
    (state,) = client.run(consumer_states([("orders", "revenue")], Limits()))
    return state


def is_consumed(client: Client) -> bool:
    return state_of(client).batch_id is None and client.next_batch("orders", "revenue") is None


def test_a_step_that_fails_is_retried_with_its_batch_and_acks_it_once(
    client: Client, spark: SparkSession
) -> None:
    publish(client, ["a", "b"])
    batches: list[int] = []

    @pgque_asset(queue="orders", retry_policy=AT_ONCE)
    def revenue(batch: SparkBatch) -> int:
        batches.append(batch.batch_id)
        if len(batches) < 3:
            raise ValueError("boom")
        return batch.event_count

    store = StoringIOManager()
    run = materialize(revenue, client.url, spark, io_manager=store)

    assert run.success
    assert len(batches) == 3
    assert len(set(batches)) == 1
    assert store.stored == [2]
    assert len(run.asset_materializations_for_node("revenue")) == 1
    assert is_consumed(client)


def test_a_batch_whose_storing_fails_is_retried(client: Client, spark: SparkSession) -> None:
    publish(client, ["a"])
    failures = [OSError("no bucket")]

    def fail_once(value: object) -> None:
        if failures:
            raise failures.pop()

    @pgque_asset(queue="orders", retry_policy=AT_ONCE)
    def revenue(batch: SparkBatch) -> int:
        return batch.event_count

    store = StoringIOManager(fail_once)
    run = materialize(revenue, client.url, spark, io_manager=store)

    assert run.success
    assert store.stored == [1]
    assert is_consumed(client)


@pytest.mark.usefixtures("one_event_a_batch")
def test_a_retry_after_an_acked_batch_repeats_none_and_loses_none(
    client: Client, spark: SparkSession
) -> None:
    """The run's own batch is acked, the next one fails: the retry has nothing of its own left."""
    publish(client, ["a"])
    publish(client, ["b"])
    first = client.next_batch("orders", "revenue")
    calls: list[int] = []

    @pgque_asset(queue="orders", max_batches=2, retry_policy=AT_ONCE)
    def revenue(batch: SparkBatch) -> int:
        calls.append(batch.batch_id)
        if len(calls) == 2:
            raise ValueError("boom")
        return batch.batch_id

    store = StoringIOManager()
    run = materialize(revenue, client.url, spark, io_manager=store, tags={BATCH_ID: str(first)})
    left = state_of(client)
    by_hand = materialize(revenue, client.url, spark, io_manager=store)

    assert run.success
    assert by_hand.success
    assert calls[0] == first
    assert calls[1:] == [left.batch_id, left.batch_id]
    assert store.stored == [first, left.batch_id]
    assert is_consumed(client)


def test_a_step_started_again_leaves_the_batch_to_the_first_process_of_its_run(
    client: Client, spark: SparkSession
) -> None:
    """As when a pod is declared lost, but works on: the retry has the same run."""
    publish(client, ["a"])
    again: list[dg.ExecuteInProcessResult] = []
    calls: list[int] = []
    run_id = str(uuid4())

    @pgque_asset(queue="orders")
    def revenue(batch: SparkBatch) -> Iterator[dg.Output[int]]:
        calls.append(batch.batch_id)
        if len(calls) == 1:
            again.append(start())
        yield dg.Output(batch.event_count)

    store = StoringIOManager()
    pgque = PgqueResource(url=client.url)
    resources = {"pgque": pgque, "pyspark": SessionHolder(spark), "io_manager": store}
    job = dg.Definitions([revenue], resources=resources).resolve_implicit_global_asset_job_def()

    def start() -> dg.ExecuteInProcessResult:
        return job.execute_in_process(run_id=run_id, raise_on_error=False)

    first = start()

    assert again[0].success
    assert first.success
    assert len(calls) == 1
    assert store.stored == [1]
    assert is_consumed(client)


@pytest.mark.parametrize("faster", ["the re-execution", "the sensor's attempt"])
def test_the_slower_of_a_re_execution_and_the_sensors_attempt_is_skipped(
    client: Client, spark: SparkSession, instance: dg.DagsterInstance, faster: str
) -> None:
    """A run that is executed again has the tags of the failed one."""
    publish(client, ["a", "b"])
    failures = [ValueError("boom")]

    @pgque_asset(queue="orders")
    def revenue(batch: SparkBatch) -> int:
        if failures:
            raise failures.pop()
        return batch.event_count

    sensor = build_pgque_sensor([revenue], backoff=timedelta(0))
    store = StoringIOManager()

    def run(tags: dict[str, str]) -> bool:
        return materialize(
            revenue, client.url, spark, io_manager=store, tags=tags, instance=instance
        ).success

    first = dict(the_request(evaluate(sensor, client.url, instance)).tags)
    is_first_done = run(first)
    second = dict(the_request(evaluate(sensor, client.url, instance)).tags)
    both = [first, second] if faster == "the re-execution" else [second, first]

    assert not is_first_done
    assert [run(tags) for tags in both] == [True, True]
    assert store.stored == [2]
    assert is_consumed(client)
