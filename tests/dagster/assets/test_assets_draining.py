"""Several batches in one run: each stored, recorded and acked by itself."""

from functools import partial
from typing import Any

import dagster as dg
import pytest

from pgque_dagster import SparkBatch
from tests.dagster.orders import Orders, consuming, materialized, texts, values
from tests.dagster.support import StoringIOManager

pytestmark = pytest.mark.usefixtures("one_event_a_batch")

drained = partial(consuming, name="drained")


def test_a_run_takes_batches_until_none_is_left_and_records_each(orders: Orders) -> None:
    orders.publish(["a"], ["b"], ["c"])
    held: list[Any] = []

    store = StoringIOManager(
        lambda value: held.append(orders.client.lease_info("orders", "revenue"))
    )
    result = orders.run(drained(max_batches=10)(texts), manager=store)
    batches = [values(each)["pgque/batch_id"] for each in materialized(result)]

    assert store.stored == [["a"], ["b"], ["c"]]
    assert len(set(batches)) == 3
    assert [(lease.batch_id, lease.is_live) for lease in held] == [(each, True) for each in batches]
    assert orders.is_consumed()


@pytest.mark.parametrize(
    ("limits", "stored"),
    [({"max_batches": 2}, [["a"], ["b"]]), ({"max_batches": 9, "max_seconds": 1e-9}, [["a"]])],
)
def test_a_run_begins_no_more_batches_than_it_may(
    orders: Orders, limits: dict[str, Any], stored: list[list[str]]
) -> None:
    orders.publish(["a"], ["b"], ["c"])
    store = StoringIOManager()

    assert orders.run(drained(**limits)(texts), manager=store).success
    assert store.stored == stored
    assert not orders.is_consumed()


@pytest.mark.parametrize("where", ["the body", "storing"])
def test_what_fails_in_a_later_batch_leaves_that_batch_and_no_other(
    orders: Orders, where: str
) -> None:
    orders.publish(["a"], ["b"])

    def fail(value: list[str]) -> None:
        if value == ["b"]:
            raise OSError("disk full")

    @drained(max_batches=9)
    def body(batch: SparkBatch) -> list[str]:
        found = texts(batch)
        if where == "the body":
            fail(found)
        return found

    store = StoringIOManager(fail)

    assert not orders.run(body, manager=store).success
    assert store.stored == [["a"]]
    assert orders.is_free()
    assert orders.left() == ["b"]


def test_checks_of_later_batches_are_recorded_and_a_blocking_one_stops_the_run(
    orders: Orders,
) -> None:
    orders.publish(["a"], ["b"], ["c"], ["d"])
    spec = dg.AssetCheckSpec("plausible", asset="drained", blocking=True)

    @drained(max_batches=9, check_specs=[spec])
    def body(batch: SparkBatch) -> dg.MaterializeResult[None]:
        check = dg.AssetCheckResult(passed=texts(batch) != ["c"])
        return dg.MaterializeResult(metadata={"mine": batch.batch_id}, check_results=[check])

    result = orders.run(body)

    assert not result.success
    checks = [each.passed for each in result.get_asset_check_evaluations()]
    assert checks == [True, True, False]
    assert ["mine" in values(each) for each in materialized(result)] == [True] * 3
    assert orders.is_free()


def test_a_later_result_keeps_its_own_metadata_and_data_version(orders: Orders) -> None:
    orders.publish(["a"], ["b"])

    @drained(max_batches=9)
    def body(batch: SparkBatch) -> dg.Output[list[str]]:
        found = texts(batch)
        return dg.Output(found, metadata={"mine": found[0]}, data_version=dg.DataVersion(found[0]))

    made = materialized(orders.run(body))

    assert [values(each)["mine"] for each in made] == ["a", "b"]
    assert [(each.tags or {})["dagster/data_version"] for each in made] == ["a", "b"]
