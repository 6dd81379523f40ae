"""Dagster starts a step again: no batch is worked on twice at once, and each is acked once."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import dagster as dg
import pytest

from pgque_dagster import SparkBatch, build_pgque_sensor, pgque_asset
from pgque_dagster.client import Batch
from pgque_dagster.project.keys import BATCH_ID
from tests.dagster.orders import Orders, Result, materialized, texts
from tests.dagster.support import StoringIOManager
from tests.support.dagster.sensing import evaluate, the_request

revenue = partial(pgque_asset, queue="orders", name="revenue")
AT_ONCE = dg.RetryPolicy(max_retries=2)


def failing(times: int) -> Callable[[Any], None]:
    """Raises so many times, and then no more."""
    errors = [ValueError("boom")] * times

    def fail(value: object) -> None:
        if errors:
            raise errors.pop()

    return fail


@pytest.mark.parametrize("where", ["the body", "storing"])
def test_a_step_that_fails_is_retried_with_its_batch_and_acks_it_once(
    orders: Orders, where: str
) -> None:
    batches: list[int] = []
    fail = failing(2)

    @revenue(retry_policy=AT_ONCE)
    def body(batch: SparkBatch) -> int:
        batches.append(batch.batch_id)
        if where == "the body":
            fail(batch)
        return batch.event_count

    orders.publish(["a", "b"])
    store = StoringIOManager(fail if where == "storing" else lambda value: None)
    run = orders.run(body, manager=store)

    assert run.success
    assert (len(batches), len(set(batches))) == (3, 1)
    assert store.stored == [2]
    assert len(materialized(run, "revenue")) == 1
    assert orders.is_consumed()


def test_a_retry_after_the_ack_repeats_nothing_and_loses_nothing(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when Dagster's storage fails after the ack: the retry leaves the next batch alone."""
    orders.publish(["a"])
    first = orders.client.next_batch("orders", "revenue")
    orders.publish(["b"])
    fail = failing(1)
    asset = revenue(retry_policy=AT_ONCE)(texts)
    ack = Batch.ack

    def ack_and_fail(*args: Any) -> Any:
        acked = ack(*args)
        fail(acked)
        return acked

    store = StoringIOManager()
    monkeypatch.setattr(Batch, "ack", ack_and_fail)
    assert orders.run(asset, manager=store, tags={BATCH_ID: str(first)}).success
    assert store.stored == [["a"]]
    assert orders.left() == ["b"]


def test_a_step_started_again_leaves_the_batch_to_the_first_process_of_its_run(
    orders: Orders,
) -> None:
    """As when a pod is declared lost, but works on: the retry has the same run."""
    again: list[Result] = []
    calls: list[int] = []
    run_id = str(uuid4())

    @revenue()
    def body(batch: SparkBatch) -> int:
        calls.append(batch.batch_id)
        if len(calls) == 1:
            again.append(start())
        return batch.event_count

    store = StoringIOManager()
    definitions = dg.Definitions([body], resources={**orders.resources, "io_manager": store})
    job = definitions.resolve_implicit_global_asset_job_def()

    def start() -> Result:
        return job.execute_in_process(run_id=run_id, raise_on_error=False)

    orders.publish(["a"])
    first = start()

    assert first.success and again[0].success
    assert len(calls) == 1
    assert store.stored == [1]
    assert orders.is_consumed()


@pytest.mark.parametrize("faster", ["the re-execution", "the sensor's attempt"])
def test_the_slower_of_a_re_execution_and_the_sensors_attempt_is_skipped(
    orders: Orders, instance: dg.DagsterInstance, faster: str
) -> None:
    """A run that is executed again has the tags of the failed one."""
    fail = failing(1)

    @revenue()
    def body(batch: SparkBatch) -> int:
        fail(batch)
        return batch.event_count

    sensor = build_pgque_sensor([body], backoff=timedelta(0))
    store = StoringIOManager()

    def tags_of_attempt() -> dict[str, str]:
        return dict(the_request(evaluate(sensor, orders.client.url, instance)).tags)

    def run(tags: dict[str, str]) -> bool:
        return orders.run(body, manager=store, tags=tags, instance=instance).success

    orders.publish(["a", "b"])
    first = tags_of_attempt()
    assert not run(first)
    second = tags_of_attempt()
    both = [first, second] if faster == "the re-execution" else [second, first]

    assert [run(tags) for tags in both] == [True, True]
    assert store.stored == [2]
    assert orders.is_consumed()
