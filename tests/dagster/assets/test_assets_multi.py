"""`@pgque_multi_asset`: several assets from one batch, which is acked when all are stored."""

from typing import Any

import dagster as dg
import pytest

from pgque_dagster import SparkBatch, build_pgque_sensor, pgque_multi_asset
from pgque_dagster.project.consumers import consumers_of
from tests.dagster.orders import Orders, error_of, materialized
from tests.dagster.support import StoringIOManager


def two(value: Any = (1, 2), **options: Any) -> dg.AssetsDefinition:
    def body(batch: SparkBatch) -> Any:
        return value

    outs = {"totals": dg.AssetOut(metadata={"mine": 1}), "counts": dg.AssetOut(kinds={"table"})}
    return pgque_multi_asset(queue="orders", consumer="revenue", outs=outs, **options)(body)


def names(result: dg.ExecuteInProcessResult) -> list[str]:
    return [each.asset_key.to_user_string() for each in materialized(result)]


def test_the_batch_is_acked_when_each_value_is_stored(orders: Orders) -> None:
    without_batch = orders.run(two())
    orders.publish(["a", "b"])
    held = []

    def fail(value: int) -> None:
        held.append(orders.client.lease_info("orders", "revenue"))
        if value == 2 and len(held) == 2:
            raise OSError("disk full")

    store = StoringIOManager(fail)
    failed = orders.run(two(), manager=store)
    assert orders.is_free()
    result = orders.run(two(), manager=store)

    assert without_batch.success and names(without_batch) == []
    assert not failed.success
    assert store.stored == [1, 1, 2]
    assert all(lease is not None and lease.is_live for lease in held)
    assert names(result) == ["totals", "counts"]
    assert orders.is_consumed()


@pytest.mark.parametrize(
    "results",
    [[None], [dg.MaterializeResult(asset_key=key) for key in ("totals", "counts")]],
    ids=["nothing", "results"],
)
def test_assets_given_by_specs_are_stored_by_the_function(
    orders: Orders, results: list[Any]
) -> None:
    specs = [dg.AssetSpec("totals"), dg.AssetSpec("counts", deps=["totals"])]

    def body(batch: SparkBatch) -> Any:
        yield from results

    body.__annotations__["return"] = None if results == [None] else Any
    body = pgque_multi_asset(queue="orders", consumer="revenue", specs=specs)(body)
    orders.publish(["a"])

    assert sorted(names(orders.run(body))) == ["counts", "totals"]
    assert orders.is_consumed()


@pytest.mark.parametrize(
    ("value", "message"),
    [((1, 2, 3), "3 results for 2 assets"), ("one", "a str does not name its asset")],
)
def test_results_that_fit_no_asset_fail_the_run(
    orders: Orders, value: object, message: str
) -> None:
    orders.publish(["a"])

    assert message in error_of(orders.run(two(value)))
    assert orders.is_free()


def test_a_sensor_sees_one_consumer_with_all_its_assets() -> None:
    (consumer,) = consumers_of([assets := two()])
    kinds = {spec.key.to_user_string(): spec.kinds for spec in assets.specs}
    upstream = {dep.asset_key.to_user_string() for spec in assets.specs for dep in spec.deps}

    assert str(consumer) == "orders/revenue"
    assert [key.to_user_string() for key in consumer.asset_keys] == ["counts", "totals"]
    assert kinds == {"totals": {"pyspark"}, "counts": {"table"}}
    assert upstream == {"pgque/orders_queue"}
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="share the consumer orders/revenue"):
        build_pgque_sensor([assets, two(name="again")])
