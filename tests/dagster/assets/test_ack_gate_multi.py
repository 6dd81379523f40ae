"""The tests of test_ack_gate.py for several assets computed from one batch, and for replays."""

from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import SparkBatch, pgque_multi_asset, pgque_replay_asset
from pgque_dagster.client import Client
from tests.dagster.assets.shapes import (
    BLOCKING,
    GOOD,
    MANAGERS,
    SENT,
    Shape,
    check,
    fails,
    function,
    good_for,
    passes,
    run,
    shapes,
    still_delivered,
    yields,
)
from tests.dagster.support import materialize
from tests.support.events import claim, publish
from tests.support.table_io_managers import TableIOManager, stored

pytestmark = pytest.mark.usefixtures("one_event_a_batch", "stored_table")

TWO = {
    "check_specs": [
        check("plausible", "totals"),
        check("same", "totals"),
        check("same", "counts", blocking=False),
    ]
}


def both(v: list[str]) -> Iterator[Any]:
    return yields(dg.Output(v, output_name="totals"), dg.Output(v, output_name="counts"))


def with_checks(v: list[str], *others: Any) -> Iterator[Any]:
    """Both outputs, with results of the checks that the other shapes leave out."""
    given = {(each.asset_key and each.asset_key.path[-1], each.check_name) for each in others}
    yield from both(v)
    yield from others
    for spec in TWO["check_specs"]:
        if (spec.asset_key.path[-1], spec.name) not in given:
            yield passes(asset_key=spec.asset_key, check_name=spec.name)


def multi_asset_of(shape: Shape, body: Callable[[SparkBatch], Any]) -> dg.AssetsDefinition:
    outs = {name: dg.AssetOut(is_required=True) for name in ("totals", "counts")}
    options = {"queue": "orders", "consumer": "revenue", "outs": outs, "max_batches": 9}
    return pgque_multi_asset(**{**options, **shape.options})(body)  # type: ignore[arg-type]


@shapes(
    Shape("a tuple", lambda v: (v, v)),
    Shape("two Outputs", both),
    Shape(
        "two MaterializeResults",
        lambda v: yields(
            *(dg.MaterializeResult(value=v, asset_key=k) for k in ("totals", "counts"))
        ),
    ),
    Shape("outputs and checks", with_checks, TWO),
    Shape(
        "a check that blocks on the other asset only",
        lambda v: with_checks(v, fails(asset_key="counts", check_name="same")),
        TWO,
    ),
)
@pytest.mark.parametrize("manager", MANAGERS)
def test_what_is_stored_of_all_assets_is_acked(
    client: Client, spark: SparkSession, shape: Shape, manager: type[TableIOManager]
) -> None:
    result = run(client, spark, multi_asset_of(shape, function(shape.make)), manager)

    assert result.success
    assert stored(client.url, "totals") == stored(client.url, "counts") == SENT
    assert still_delivered(client) == []


@shapes(
    Shape("None", lambda v: None),
    Shape("a tuple with None", lambda v: (v, None)),
    Shape("nothing yielded", lambda v: yields()),
    Shape("one of two", lambda v: yields(dg.Output(v, output_name="totals"))),
    Shape("one of two twice", lambda v: yields(*both(v), dg.Output(v, output_name="counts"))),
    Shape("too many", lambda v: (v, v, v)),
    Shape("no checks", both, TWO),
    Shape(
        "a failed check by its name",
        lambda v: with_checks(v, fails(asset_key="totals", check_name="same")),
        TWO,
    ),
    Shape(
        "a failed check without a name",
        lambda v: with_checks(v, fails(asset_key="counts")),
        {"check_specs": [check("only", "totals"), check("other", "counts")]},
    ),
    Shape(
        "a failed check of no asset", lambda v: with_checks(v, fails(check_name="plausible")), TWO
    ),
)
@pytest.mark.parametrize("wrong", ["a", "b"], ids=["first batch", "later batch"])
def test_what_is_not_stored_of_all_assets_is_not_acked(
    client: Client, spark: SparkSession, shape: Shape, wrong: str
) -> None:
    specs = shape.options.get("check_specs", ())

    def good(v: list[str]) -> Iterator[Any]:
        results = (passes(asset_key=each.asset_key, check_name=each.name) for each in specs)
        return yields(*both(v), *results)

    result = run(client, spark, multi_asset_of(shape, function(good, shape.make, wrong)))
    acked = SENT[: SENT.index(wrong)]

    assert not result.success
    for asset in ("totals", "counts"):
        assert set(acked) <= set(stored(client.url, asset))
    assert still_delivered(client) == SENT[len(acked) :]


# Replays


def replay_of(shape: Shape, body: Callable[[SparkBatch], Any]) -> dg.AssetsDefinition:
    return pgque_replay_asset(queue="orders", name="kept", **shape.options)(body)


def run_replay(
    client: Client,
    spark: SparkSession,
    asset: dg.AssetsDefinition,
    manager: type[TableIOManager] = TableIOManager,
) -> dg.ExecuteInProcessResult:
    ticks = []
    for payload in SENT:
        publish(client, [payload])
        batch = claim(client)
        ticks += [batch.lease.prev_tick_id, batch.lease.tick_id]
        batch.ack()
    config = {"from_tick": min(ticks), "to_tick": max(ticks), "max_events": 1}
    return materialize(
        asset,
        client.url,
        spark,
        io_manager=manager(client.url),
        run_config={"ops": {"kept": {"config": config}}},
    )


@GOOD
@pytest.mark.parametrize("manager", MANAGERS)
def test_a_replay_stores_all_of_its_range(
    client: Client, spark: SparkSession, shape: Shape, manager: type[TableIOManager]
) -> None:
    result = run_replay(client, spark, replay_of(shape, function(shape.make)), manager)

    assert result.success
    assert stored(client.url, "kept") == SENT
    assert [consumer.name for consumer in client.consumers("orders")] == ["revenue"]


@shapes(
    Shape("None", lambda v: None),
    Shape("nothing yielded", lambda v: yields()),
    Shape("a MaterializeResult without a value", lambda v: dg.MaterializeResult()),
    Shape("two values", lambda v: yields(v, ["more"])),
    Shape("no check", lambda v: v, BLOCKING),
    Shape("a failed check", lambda v: yields(v, fails()), BLOCKING),
)
@pytest.mark.parametrize("wrong", ["a", "b"], ids=["first batch", "later batch"])
def test_a_replay_stops_at_what_is_not_stored_or_not_checked(
    client: Client, spark: SparkSession, shape: Shape, wrong: str
) -> None:
    body = function(good_for(shape), shape.make, wrong)
    result = run_replay(client, spark, replay_of(shape, body))
    (replay,) = (each for each in client.consumers("orders") if each.name != "revenue")
    waiting = [message.payload for message in claim(client, consumer=replay.name).events()]

    assert not result.success
    assert set(SENT[: SENT.index(wrong)]) <= set(stored(client.url, "kept"))
    assert waiting == [wrong]
