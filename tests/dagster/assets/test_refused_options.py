"""Options that can mean nothing for batches are refused when the asset is defined."""

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from functools import partial, wraps
from typing import Any

import dagster as dg
import pytest

from pgque_dagster import SparkBatch, pgque_asset, pgque_multi_asset
from tests.dagster.orders import Orders, consuming
from tests.dagster.support import StoringIOManager

DAILY = dg.DailyPartitionsDefinition(start_date="2026-01-01")
POLICY = dg.BackfillPolicy.single_run()
TOO_LONG = timedelta(days=366)
ONE = {"outs": {"a": dg.AssetOut()}}
one = partial(pgque_asset, queue="orders")
several = partial(pgque_multi_asset, queue="orders")
window = partial(pgque_asset, queue="orders", partitions_def=DAILY)
Decorator = Callable[..., Any]


def totals(batch: SparkBatch) -> list[str]:
    return []


@pytest.mark.parametrize(
    ("decorator", "options", "message"),
    [
        (
            one,
            {"backfill_policy": POLICY},
            "totals: leave out .*backfill_policy.*@pgque_asset with",
        ),
        (several, {"partitions_def": DAILY, **ONE}, "leave out partitions_def.*@pgque_asset with"),
        (several, {"backfill_policy": POLICY, **ONE}, "leave out .*backfill_policy"),
        (several, {"specs": [dg.AssetSpec("a", partitions_def=DAILY)]}, "@pgque_asset with"),
        *(
            (window, {option: value}, f"totals: leave out {option}, or partitions_def")
            for option, value in (
                ("consumer", "c"),
                ("start_at", "latest"),
                ("partitions", 2),
                ("lease_ttl", timedelta(minutes=2)),
                ("batch_safe", True),
            )
        ),
        (window, {"partitions_def": dg.StaticPartitionsDefinition(["a"])}, "TimeWindowPartitions"),
        (window, {"backfill_policy": POLICY}, "BackfillPolicy.multi_run"),
        (window, {"slices": 0}, "slices is 0"),
        (one, {"leave_out_failed": True}, "remove leave_out_failed, or pass partitions_def"),
        (several, {}, "pass either specs or outs"),
        (several, {"specs": [dg.AssetSpec("b")], **ONE}, "pass either specs or outs"),
        (several, {"specs": [dg.AssetSpec("a")], "can_subset": True}, "materialized together"),
        (one, {"slices": 0}, "slices is 0"),
        (one, {"slices": True}, "slices"),
        (one, {"lease_ttl": timedelta()}, "lease_ttl is 0:00:00"),
        (one, {"lease_ttl": TOO_LONG}, "lease_ttl"),
    ],
)
def test_an_option_that_can_mean_nothing_is_refused_with_the_alternative(
    decorator: Decorator, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=message):
        decorator(**options)(totals)


@pytest.mark.parametrize("decorator", [one, window])
def test_a_function_that_cannot_compute_a_batch_is_refused(decorator: Decorator) -> None:
    async def coroutine(batch: SparkBatch) -> list[str]:
        return []

    async def generator(batch: SparkBatch) -> AsyncIterator[str]:
        yield ""

    def nothing() -> list[str]:
        return []

    for function in (coroutine, generator):
        with pytest.raises(dg.DagsterInvalidDefinitionError, match=r"is async.*asyncio\.run"):
            decorator()(function)
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="no parameter 'batch'"):
        decorator()(nothing)


def test_the_coroutine_of_a_hidden_async_function_acks_nothing(orders: Orders) -> None:
    async def hidden(batch: SparkBatch) -> list[str]:
        return []

    @wraps(hidden)
    def call(batch: SparkBatch) -> Any:
        found = hidden(batch)
        found.close()
        return found

    del call.__wrapped__  # type: ignore[attr-defined]
    orders.publish(["a"])
    manager = StoringIOManager()

    assert not orders.run(consuming()(call), manager=manager).success
    assert manager.stored == []
    assert orders.left() == ["a"]
