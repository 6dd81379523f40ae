"""Attempts at batches that a sink stores, and what happens behind their renewal."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Client
from pgque_dagster.client.encoding import Payload
from pgque_dagster.spark import SparkBatch
from tests.support.queues.events import claim, publish

BatchOf = Callable[..., SparkBatch]


def next_batch(client: Client, spark: SparkSession, payloads: Sequence[Payload]) -> SparkBatch:
    """A claimed batch of events with these payloads."""
    publish(client, payloads)
    return SparkBatch(spark, claim(client), client.url)


def again(client: Client, spark: SparkSession, batch: SparkBatch) -> SparkBatch:
    """Another claim of the batch, whose lease the first one has lost."""
    batch.claim.release()
    return SparkBatch(spark, claim(client), client.url)


def once_before_the_swap(
    monkeypatch: pytest.MonkeyPatch, output: type[Any], step: Callable[[], object]
) -> None:
    """Has something happen when an attempt is behind its renewal, one time."""
    replace = output.replace
    steps = [step]

    def replacing(self: Any, state: Any) -> bool:
        if steps:
            steps.pop()()
        return bool(replace(self, state))

    monkeypatch.setattr(output, "replace", replacing)


def results_of_swaps(monkeypatch: pytest.MonkeyPatch, output: type[Any]) -> list[bool]:
    """What each swap of any attempt returns from now on."""
    replace = output.replace
    results: list[bool] = []

    def replacing(self: Any, state: Any) -> bool:
        results.append(replace(self, state))
        return results[-1]

    monkeypatch.setattr(output, "replace", replacing)
    return results
