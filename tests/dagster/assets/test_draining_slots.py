"""A run of several batches of a slot, whose consumer gets another number of slots meanwhile."""

from datetime import timedelta
from functools import partial

import dagster as dg
import pytest

from pgque_dagster import SparkBatch, build_pgque_sensor, pgque_asset
from pgque_dagster.assets import claims
from pgque_dagster.client import Batch
from pgque_dagster.client.partitions import repartition
from tests.dagster.orders import Orders
from tests.dagster.support import StoringIOManager
from tests.support.events import tick
from tests.support.sensing import evaluate

KEYS = "abcdef"
in_slots = partial(pgque_asset, queue="orders", consumer="parted", name="drained", max_batches=9)


def keys_and_texts(batch: SparkBatch) -> list[str]:
    return [f"{row.ev_extra1}{row.ev_data}" for row in batch.events().collect()]


@pytest.mark.usefixtures("one_event_a_batch")
def test_a_run_whose_slot_goes_after_an_ack_succeeds_and_the_rest_comes_in_new_slots(
    orders: Orders, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def publish(text: str) -> None:
        """One event of each key, in a tick of its own."""
        for key in KEYS:
            orders.client.send("orders", text, partition_key=key)
        tick(orders.client)

    drained = in_slots(partitions=2)(keys_and_texts)
    sensor = build_pgque_sensor([drained], backoff=timedelta(0))
    evaluate(sensor, orders.client.url, instance)
    publish("1")
    requests = evaluate(sensor, orders.client.url, instance)
    assert isinstance(requests, list)
    publish("2")
    store = StoringIOManager()

    # A slot with an open batch cannot be given up.
    assert orders.run(drained, manager=store, tags=dict(requests[1].tags)).success
    original = claims._Claims.next

    def next_after_repartition(self: claims._Claims) -> Batch | None:
        orders.client.run(repartition("orders", "parted", 3))
        return original(self)

    with monkeypatch.context() as patch:
        patch.setattr(claims._Claims, "next", next_after_repartition)
        assert orders.run(drained, manager=store, tags=dict(requests[0].tags)).success
    assert len(store.stored) == 3

    for _ in range(3):
        assert orders.run(in_slots(partitions=3)(keys_and_texts), manager=store).success
    found = sorted(text for batch in store.stored for text in batch)
    assert found == sorted(key + text for key in KEYS for text in "12")
