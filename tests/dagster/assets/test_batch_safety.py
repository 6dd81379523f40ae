"""An IO manager that may replace the output of one batch by that of the next one is refused."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from pgque_dagster import SparkBatch, pgque_multi_asset
from tests.dagster.orders import Orders, consuming, error_of
from tests.dagster.support import StoringIOManager


def count(batch: SparkBatch) -> int:
    return batch.events().count()


revenue = consuming(name="revenue")(count)
several = pgque_multi_asset(queue="orders", consumer="revenue", outs={"one": dg.AssetOut()})(count)


@pytest.mark.parametrize("asset", [revenue, several], ids=["asset", "multi_asset"])
def test_an_io_manager_that_is_not_known_to_keep_batches_apart_is_refused(
    orders: Orders, tmp_path: Path, asset: dg.AssetsDefinition
) -> None:
    orders.publish(["a"])

    for manager in (dg.FilesystemIOManager(base_dir=str(tmp_path)), dg.InMemoryIOManager()):
        error = error_of(orders.run(asset, manager=manager))
        assert "may replace the output of a batch of" in error
        assert "batch_safe=True" in error
    assert list(tmp_path.iterdir()) == []
    assert orders.is_free()


def test_the_default_io_manager_of_dagster_is_refused(orders: Orders) -> None:
    orders.publish(["a"])
    resources = {key: each for key, each in orders.resources.items() if key != "io_manager"}

    for run in (dg.materialize, dg.materialize_to_memory):
        result = run([revenue], resources=resources, raise_on_error=False)
        assert "may replace the output of a batch of revenue" in error_of(result)
        assert "To test the function, pass it a batch of batch_from_rows." in error_of(result)


def test_an_asset_or_an_io_manager_may_say_that_it_keeps_batches_apart(
    orders: Orders, tmp_path: Path
) -> None:
    def stores_itself(batch: SparkBatch) -> Any:
        return dg.MaterializeResult(metadata={"events": batch.events().count()})

    known = consuming(name="revenue", batch_safe=True)(count)
    unknown = dg.FilesystemIOManager(base_dir=str(tmp_path))

    for asset, manager in (
        (known, unknown),
        (revenue, StoringIOManager()),
        (consuming(name="revenue")(stores_itself), unknown),
    ):
        orders.publish(["a"])
        assert orders.run(asset, manager=manager).success
        assert orders.is_consumed()
