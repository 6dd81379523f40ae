"""A run of several batches of a slot, whose consumer gets another number of slots meanwhile."""

from datetime import timedelta

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import SparkBatch, build_pgque_sensor, pgque_asset
from pgque_dagster.assets import claims
from pgque_dagster.client import Batch, Client
from pgque_dagster.client.partitions import repartition
from tests.dagster.support import StoringIOManager, materialize
from tests.support.events import tick
from tests.support.sensing import evaluate

KEYS = ("a", "b", "c", "d", "e", "f")
NOW = timedelta(0)


@pgque_asset(queue="orders", consumer="parted", partitions=2, max_batches=9)
def drained(batch: SparkBatch) -> list[str]:
    return [f"{row.ev_extra1}{row.ev_data}" for row in batch.events().collect()]


def publish(client: Client, text: str) -> None:
    """One event of each key, in a tick of its own."""
    for key in KEYS:
        client.send("orders", text, partition_key=key)
    tick(client)


@pytest.mark.usefixtures("one_event_a_batch")
def test_a_run_whose_slot_goes_after_an_ack_succeeds_and_the_rest_comes_in_new_slots(
    client: Client,
    instance: dg.DagsterInstance,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sensor = build_pgque_sensor([drained], backoff=NOW)
    evaluate(sensor, client.url, instance)
    publish(client, "1")
    requests = evaluate(sensor, client.url, instance)
    assert isinstance(requests, list)
    publish(client, "2")
    store = StoringIOManager()

    def run(request: dg.RunRequest) -> bool:
        tags = dict(request.tags)
        return materialize(drained, client.url, spark, io_manager=store, tags=tags).success

    # A slot with an open batch cannot be given up.
    assert run(requests[1])
    original = claims._Claims.next

    def next_after_repartition(self: claims._Claims) -> Batch | None:
        client.run(repartition("orders", "parted", 3))
        return original(self)

    with monkeypatch.context() as patch:
        patch.setattr(claims._Claims, "next", next_after_repartition)
        assert run(requests[0])
    assert len(store.stored) == 3

    in_three = pgque_asset(
        queue="orders", consumer="parted", partitions=3, max_batches=9, name="drained"
    )(lambda batch: [f"{row.ev_extra1}{row.ev_data}" for row in batch.events().collect()])
    for _ in range(3):
        assert materialize(in_three, client.url, spark, io_manager=store).success
    assert sorted(text for batch in store.stored for text in batch) == sorted(
        key + text for key in KEYS for text in "12"
    )
