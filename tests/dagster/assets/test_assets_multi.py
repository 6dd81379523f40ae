"""`@pgque_multi_asset`: several assets from one batch, which is acked when all are stored."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import SparkBatch, build_pgque_sensor, pgque_multi_asset
from pgque_dagster.client import Client
from pgque_dagster.consumers import consumers_of
from tests.dagster.support import StoringIOManager, materialize
from tests.support.events import publish


def materialized(result: dg.ExecuteInProcessResult) -> list[str]:
    return [
        event.materialization.asset_key.to_user_string()
        for event in result.all_events
        if event.event_type == dg.DagsterEventType.ASSET_MATERIALIZATION
    ]


def two(body: Any, **options: Any) -> dg.AssetsDefinition:
    outs = {"totals": dg.AssetOut(metadata={"mine": 1}), "counts": dg.AssetOut(kinds={"table"})}
    return pgque_multi_asset(queue="orders", consumer="revenue", outs=outs, **options)(body)


def test_each_value_of_a_tuple_is_stored_before_the_ack(
    client: Client, spark: SparkSession
) -> None:
    publish(client, ["a", "b"])
    held = []

    def body(batch: SparkBatch) -> tuple[str, int]:
        return "total", batch.event_count

    store = StoringIOManager(lambda value: held.append(client.lease_info("orders", "revenue")))
    result = materialize(two(body), client.url, spark, io_manager=store)

    assert result.success
    assert store.stored == ["total", 2]
    assert all(lease is not None and lease.is_live for lease in held)
    assert materialized(result) == ["totals", "counts"]
    assert client.next_batch("orders", "revenue") is None


def test_when_one_of_them_cannot_be_stored_the_batch_is_not_acked(
    client: Client, spark: SparkSession
) -> None:
    publish(client, ["a"])

    def body(batch: SparkBatch) -> Iterator[dg.Output[int]]:
        yield dg.Output(1, output_name="totals")
        yield dg.Output(2, output_name="counts")

    def fail(value: int) -> None:
        if value == 2:
            raise OSError("disk full")

    result = materialize(two(body), client.url, spark, io_manager=StoringIOManager(fail))
    lease = client.lease_info("orders", "revenue")

    assert not result.success
    assert lease is not None and not lease.is_live


def test_batches_are_drained_into_each_of_them(
    client: Client, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pgque_dagster.assets import claims
    from pgque_dagster.client import Limits

    monkeypatch.setattr(claims, "_AT_ONCE", Limits(max_count=1))
    publish(client, ["a"])
    publish(client, ["b"])

    def body(batch: SparkBatch) -> tuple[str, int]:
        return batch.events().collect()[0].ev_data, batch.event_count

    store = StoringIOManager()
    result = materialize(two(body, max_batches=5), client.url, spark, io_manager=store)

    assert store.stored == ["a", 1, "b", 1]
    assert materialized(result) == ["totals", "counts"] * 2


@pytest.mark.parametrize("returned", ["none", "results"])
def test_assets_given_by_specs_are_stored_by_the_function(
    client: Client, spark: SparkSession, returned: str
) -> None:
    publish(client, ["a"])

    @pgque_multi_asset(
        queue="orders",
        consumer="revenue",
        specs=[dg.AssetSpec("totals"), dg.AssetSpec("counts", deps=["totals"])],
        returns_nothing=returned == "none",
    )
    def body(batch: SparkBatch) -> Iterator[Any]:
        if returned == "none":
            yield None
        else:
            yield dg.MaterializeResult(asset_key="totals")
            yield dg.MaterializeResult(asset_key="counts", metadata={"mine": 1})

    result = materialize(body, client.url, spark)

    assert result.success
    assert sorted(materialized(result)) == ["counts", "totals"]
    assert client.next_batch("orders", "revenue") is None


def test_without_a_batch_all_of_them_are_skipped(client: Client, spark: SparkSession) -> None:
    def body(batch: SparkBatch) -> tuple[int, int]:
        return 1, 2

    result = materialize(two(body), client.url, spark)

    assert result.success
    assert materialized(result) == []


@pytest.mark.parametrize(
    ("value", "message"),
    [((1, 2, 3), "3 results for 2 assets"), ("one", "a str does not name its asset")],
)
def test_results_that_fit_no_asset_fail_the_run(
    client: Client, spark: SparkSession, value: object, message: str
) -> None:
    publish(client, ["a"])

    def body(batch: SparkBatch) -> object:
        return value

    result = materialize(two(body), client.url, spark)
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    lease = client.lease_info("orders", "revenue")

    assert message in str(failure.step_failure_data.error)
    assert lease is not None and not lease.is_live


def test_a_sensor_sees_one_consumer_with_all_its_assets() -> None:
    def body(batch: SparkBatch) -> tuple[int, int]:
        return 1, 2

    assets = two(body)
    (consumer,) = consumers_of([assets])
    kinds = {spec.key.to_user_string(): spec.kinds for spec in assets.specs}
    upstream = {dep.asset_key.to_user_string() for spec in assets.specs for dep in spec.deps}

    assert str(consumer) == "orders/revenue"
    assert [key.to_user_string() for key in consumer.asset_keys] == ["counts", "totals"]
    assert kinds == {"totals": {"pyspark"}, "counts": {"table"}}
    assert upstream == {"pgque/orders_queue"}
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="share the consumer orders/revenue"):
        build_pgque_sensor([assets, two(body, name="again")])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "pass either specs or outs"),
        ({"specs": [dg.AssetSpec("a")], "outs": {"b": dg.AssetOut()}}, "pass either specs or outs"),
        ({"specs": [dg.AssetSpec("a")], "can_subset": True}, "materialized together"),
    ],
)
def test_what_cannot_be_a_multi_asset_is_refused_when_it_is_defined(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=message):
        pgque_multi_asset(queue="orders", **options)
