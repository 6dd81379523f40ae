"""`@pgque_asset`: claim, compute, store, check, ack, in this order and no other."""

import threading
import time
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest

from pgque_dagster import SparkBatch
from tests.dagster.orders import Orders, consuming, error_of, materialized, texts
from tests.dagster.support import StoringIOManager
from tests.support.queues.events import claim

payloads = consuming(name="payloads")(texts)


@pytest.mark.parametrize("where", ["the body", "storing"])
def test_a_batch_that_failed_is_free_for_the_next_attempt_and_has_no_dead_letters(
    orders: Orders, where: str
) -> None:
    (event_id,) = orders.publish(["a"])

    @consuming(name="payloads")
    def failing(batch: SparkBatch) -> int:
        batch.dead_letter([event_id], reason="no good")
        if where == "the body":
            raise OSError("disk full")
        return 1

    def fail(value: object) -> None:
        raise OSError("disk full")

    failed = orders.run(failing, manager=StoringIOManager(fail))
    again = StoringIOManager()

    assert "disk full" in error_of(failed)
    assert orders.is_free()
    assert orders.dead_letters() == 0
    assert orders.run(payloads, manager=again).success
    assert again.stored == [["a"]]


def test_a_run_leaves_the_batch_of_another_run_alone(orders: Orders) -> None:
    orders.publish(["a"])
    other = claim(orders.client)

    skipped = orders.run(payloads)
    other.ack()
    orders.publish(["b"])
    of_done = orders.run(payloads, tags={"pgque/batch_id": str(other.batch_id)})

    assert skipped.success and of_done.success
    assert materialized(skipped) == materialized(of_done) == []
    assert orders.left() == ["b"]


def test_a_run_that_lost_its_batch_fails_and_acks_nothing(orders: Orders) -> None:
    orders.publish(["a"])

    def take_over(value: object) -> None:
        with orders.client.transaction() as connection:
            connection.execute("update pgque.position_log set lease_until = now() - interval '1s'")
        assert orders.client.claim("orders", "revenue", owner="a faster run") is not None

    result = orders.run(payloads, manager=StoringIOManager(take_over))
    lease = orders.client.lease_info("orders", "revenue")

    assert not result.success
    assert lease is not None and lease.owner == "a faster run"


def test_a_consumer_removed_while_its_run_works_fails_the_run(orders: Orders) -> None:
    @consuming()
    def orphan(batch: SparkBatch) -> None:
        orders.client.unregister_consumer("orders", "revenue", skip=True)

    orders.publish(["a"])

    error = error_of(orders.run(orphan))
    assert "BatchNotOpen" in error or "ConsumerNotFound" in error


def test_the_lease_is_renewed_while_the_body_works(orders: Orders) -> None:
    def until() -> Any:
        lease = orders.client.lease_info("orders", "revenue")
        assert lease is not None and lease.is_live
        return lease.until

    @consuming(lease_ttl=timedelta(seconds=2))
    def slow(batch: SparkBatch) -> None:
        first = until()
        while until() == first:
            time.sleep(0.05)

    orders.publish(["a"])

    assert orders.run(slow).success
    assert not [t for t in threading.enumerate() if t.name.startswith("pgque-lease")]


def test_a_body_gets_what_it_names_beside_the_batch(orders: Orders) -> None:
    class Rates(dg.ConfigurableResource[float]):
        euro: float

    @dg.asset
    def tax() -> float:
        return 0.5

    @consuming(group_name="sales", tags={"team": "x"})
    def named(
        context: dg.AssetExecutionContext, batch: SparkBatch, tax: float, rates: Rates
    ) -> tuple[str, int, float, float]:
        """Returns its arguments."""
        return context.asset_key.to_user_string(), batch.event_count, tax, rates.euro

    orders.publish(["a"])
    store = StoringIOManager()
    assert orders.run(named, tax, manager=store, resources={"rates": Rates(euro=1.25)}).success
    assert store.stored[-1] == ("named", 1, 0.5, 1.25)
    (spec,) = named.specs
    assert (spec.group_name, spec.tags["team"]) == ("sales", "x")
    assert spec.description == "Returns its arguments."
