"""Options of Dagster that can mean nothing for batches are refused when the asset is defined."""

from collections.abc import AsyncIterator, Callable
from functools import wraps
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import (
    SparkBatch,
    pgque_asset,
    pgque_multi_asset,
    pgque_replay_asset,
    pgque_window_asset,
)
from pgque_dagster.client import Client
from tests.dagster.support import StoringIOManager, materialize
from tests.support.events import claim, publish

DAILY = dg.DailyPartitionsDefinition(start_date="2026-01-01")
MEANINGLESS = [
    ("partitions_def", DAILY),
    ("backfill_policy", dg.BackfillPolicy.single_run()),
]
Decorator = Callable[..., Any]


def decorated(decorator: Decorator, **options: Any) -> None:
    def totals(batch: SparkBatch) -> list[str]:
        return []

    decorator(queue="orders", **options)(totals)


@pytest.mark.parametrize(("option", "value"), MEANINGLESS)
@pytest.mark.parametrize(
    "decorator",
    [
        pgque_asset,
        pgque_replay_asset,
        lambda **options: pgque_multi_asset(outs={"a": dg.AssetOut()}, **options),
    ],
    ids=["one", "replay", "several"],
)
def test_partitions_are_refused_with_the_alternative(
    decorator: Decorator, option: str, value: Any
) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=f"leave out {option}") as caught:
        decorated(decorator, **{option: value})
    assert "@pgque_window_asset" in str(caught.value)
    assert "totals" in str(caught.value)


@pytest.mark.parametrize(
    ("decorator", "options"),
    [
        (pgque_replay_asset, {}),
        (pgque_window_asset, {"partitions_def": dg.HourlyPartitionsDefinition("2026-01-01-00:00")}),
    ],
)
def test_slots_are_refused_where_no_consumer_is(
    decorator: Decorator, options: dict[str, Any]
) -> None:
    with pytest.raises(
        dg.DagsterInvalidDefinitionError, match=r"leave out partitions: .* no slots"
    ):
        decorated(decorator, partitions=8, **options)


def test_partitions_of_one_of_several_assets_are_refused() -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="@pgque_window_asset"):
        decorated(pgque_multi_asset, specs=[dg.AssetSpec("a", partitions_def=DAILY)])
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="@pgque_window_asset"):
        policy = dg.BackfillPolicy.single_run()
        decorated(pgque_multi_asset, outs={"a": dg.AssetOut(backfill_policy=policy)})


@pytest.mark.parametrize("required", [True, False])
def test_a_required_output_is_refused(required: bool) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="leave out output_required"):
        decorated(pgque_asset, output_required=required)


@pytest.mark.parametrize(
    "decorator",
    [
        pgque_asset,
        pgque_replay_asset,
        lambda queue: pgque_window_asset(queue=queue, partitions_def=DAILY),
    ],
    ids=["one", "replay", "window"],
)
def test_an_async_function_is_refused_with_the_alternative(decorator: Decorator) -> None:
    async def totals(batch: SparkBatch) -> list[str]:
        return []

    async def each(batch: SparkBatch) -> AsyncIterator[str]:
        yield ""

    for function in (totals, each):
        with pytest.raises(dg.DagsterInvalidDefinitionError, match=r"is async.*asyncio\.run"):
            decorator(queue="orders")(function)


def test_the_coroutine_of_a_hidden_async_function_acks_nothing(
    client: Client, spark: SparkSession
) -> None:
    async def hidden(batch: SparkBatch) -> list[str]:
        return []

    def plain(function: Any) -> Any:
        @wraps(function)
        def call(batch: SparkBatch) -> Any:
            found = function(batch)
            found.close()
            return found

        del call.__wrapped__  # type: ignore[attr-defined]
        return call

    asset = pgque_asset(queue="orders", consumer="revenue")(plain(hidden))
    publish(client, ["a"])
    manager = StoringIOManager()

    assert not materialize(asset, client.url, spark, io_manager=manager).success
    assert manager.stored == []
    assert [event.payload for event in claim(client).events()] == ["a"]


@pytest.mark.parametrize(
    ("decorator", "options"),
    [
        (pgque_asset, {}),
        (pgque_replay_asset, {}),
        (pgque_window_asset, {"partitions_def": dg.HourlyPartitionsDefinition("2026-01-01-00:00")}),
        (pgque_multi_asset, {"outs": {"a": dg.AssetOut()}}),
    ],
)
def test_an_unknown_option_is_refused_with_the_known_ones(
    decorator: Decorator, options: dict[str, Any]
) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError) as caught:
        decorated(decorator, consumr="x", **options)
    told = str(caught.value)
    assert told.startswith(f"@{decorator.__name__} has no option consumr: ")
    assert " queue," in told
    assert " name," in told


def test_an_unknown_option_is_compared_with_the_known_ones() -> None:
    with pytest.raises(
        dg.DagsterInvalidDefinitionError, match=r"has no option owner: did you mean"
    ):
        decorated(pgque_asset, owner="x")
