"""A batch is acked when its whole output is stored and checked, whatever shape its results have.

Each shape runs over three batches of one run, so that the second is stored as later batches are. A
table in Postgres shows what was stored, and the queue shows what it still delivers.
"""

from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import SparkBatch, pgque_asset, pgque_multi_asset, pgque_replay_asset
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
from tests.support.table_io_managers import TableIOManager, store, stored

pytestmark = pytest.mark.usefixtures("one_event_a_batch", "stored_table")


def asset_of(shape: Shape, body: Callable[[SparkBatch], Any]) -> dg.AssetsDefinition:
    options = {"queue": "orders", "consumer": "revenue", "name": "kept", "max_batches": 9}
    return pgque_asset(**{**options, **shape.options})(body)  # type: ignore[arg-type]


@GOOD
@pytest.mark.parametrize("manager", MANAGERS)
def test_what_is_stored_and_checked_is_acked(
    client: Client, spark: SparkSession, shape: Shape, manager: type[TableIOManager]
) -> None:
    result = run(client, spark, asset_of(shape, function(shape.make)), manager)

    assert result.success
    assert stored(client.url, "kept") == SENT
    assert still_delivered(client) == []


BAD = shapes(
    Shape("None", lambda v: None),
    Shape("nothing yielded", lambda v: yields()),
    Shape("None yielded", lambda v: yields(None)),
    Shape("an Output of None", lambda v: dg.Output(None)),
    Shape("a MaterializeResult of None", lambda v: dg.MaterializeResult(value=None)),
    Shape("nothing but a record", lambda v: yields(dg.AssetMaterialization("kept"))),
    Shape("a DynamicOutput", lambda v: yields(dg.DynamicOutput(v, "x"))),
    Shape("two values", lambda v: yields(v, ["more"])),
    Shape("a list of results", lambda v: [dg.Output(v)]),
    Shape("results that nobody iterated", lambda v: map(dg.Output, [v])),
    Shape("an output that there is not", lambda v: yields(dg.Output(v, output_name="kept"))),
    Shape("another asset", lambda v: dg.MaterializeResult(value=v, asset_key="other")),
    Shape("nothing but a check", lambda v: yields(passes()), BLOCKING),
    Shape("no check", lambda v: v, BLOCKING),
    Shape(
        "no check that does not block", lambda v: v, {"check_specs": [check("x", blocking=False)]}
    ),
    Shape("a failed check without a name", lambda v: yields(v, fails()), BLOCKING),
    Shape("a failed check by its name", lambda v: (v, fails(check_name="plausible")), BLOCKING),
    Shape("a failed check by its asset", lambda v: yields(v, fails(asset_key="kept")), BLOCKING),
    Shape("a check that there is not", lambda v: yields(v, passes(check_name="no")), BLOCKING),
    Shape(
        "a check without a name where there are two",
        lambda v: yields(v, fails()),
        {"check_specs": [check("one"), check("two", blocking=False)]},
    ),
    Shape("a check that fails and then passes", lambda v: yields(v, fails(), passes()), BLOCKING),
    Shape(
        "an evaluation that fails",
        lambda v: yields(
            v,
            dg.AssetCheckEvaluation(
                asset_key=dg.AssetKey("kept"),
                check_name="of its own",
                passed=False,
                metadata={},
                blocking=True,
            ),
        ),
    ),
    Shape(
        "an evaluation in the place of a result",
        lambda v: yields(
            v,
            dg.AssetCheckEvaluation(
                asset_key=dg.AssetKey("kept"), check_name="plausible", passed=True, metadata={}
            ),
        ),
        BLOCKING,
    ),
    Shape("another type", lambda v: "text", {"dagster_type": dg.List[str]}),
)


@BAD
@pytest.mark.parametrize("wrong", ["a", "b"], ids=["first batch", "later batch"])
def test_what_is_not_stored_or_not_checked_is_not_acked(
    client: Client, spark: SparkSession, shape: Shape, wrong: str
) -> None:
    body = function(good_for(shape), shape.make, wrong)
    result = run(client, spark, asset_of(shape, body))
    acked = SENT[: SENT.index(wrong)]

    assert not result.success
    assert set(acked) <= set(stored(client.url, "kept"))
    assert still_delivered(client) == SENT[len(acked) :]


# Functions that store their results themselves


def storing(client: Client, *results: Any, yielding: bool = False) -> Callable[[SparkBatch], Any]:
    def body(batch):  # type: ignore[no-untyped-def]
        payloads = [row.ev_data for row in batch.events(["ev_data"]).collect()]
        store(client.url, "kept", batch.batch_id, payloads)
        return yields(*results) if yielding else results[0]

    return body


@pytest.mark.parametrize("shape", ["annotated", "option", "yields nothing", "yields a check"])
def test_a_function_that_says_so_returns_nothing(
    client: Client, spark: SparkSession, shape: str
) -> None:
    options: dict[str, Any] = {"returns_nothing": True}
    body = storing(client, None)
    if shape == "annotated":
        options = {}
        body.__annotations__ = {"return": None}
    elif shape == "yields nothing":
        body = storing(client, yielding=True)
    elif shape == "yields a check":
        options |= BLOCKING
        body = storing(client, passes(), yielding=True)

    result = run(client, spark, asset_of(Shape("", list, options), body))

    assert result.success
    assert len(result.asset_materializations_for_node("kept")) == len(SENT)
    assert stored(client.url, "kept") == SENT
    assert still_delivered(client) == []


def test_an_asset_with_checks_is_skipped_where_there_is_no_batch(
    client: Client, spark: SparkSession
) -> None:
    asset = asset_of(Shape("", list, BLOCKING), function(lambda v: yields(v, passes())))

    result = materialize(asset, client.url, spark, io_manager=TableIOManager(client.url))

    assert result.success
    assert result.asset_materializations_for_node("kept") == []


def test_a_function_that_says_that_it_returns_nothing_may_not_return_a_value(
    client: Client, spark: SparkSession
) -> None:
    def body(batch: SparkBatch) -> None:
        return ["lost"]  # type: ignore[return-value]

    result = run(client, spark, asset_of(Shape("", list), body))

    assert not result.success
    assert still_delivered(client) == SENT


def test_a_function_cannot_return_nothing_where_an_io_manager_is_named() -> None:
    def body(batch: SparkBatch) -> None: ...

    outs = {"totals": dg.AssetOut(), "counts": dg.AssetOut()}
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="is declared to return nothing"):
        pgque_asset(queue="orders", io_manager_key="table")(body)
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="is declared to return nothing"):
        pgque_multi_asset(queue="orders", outs=outs)(body)
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="is declared to return nothing"):
        pgque_replay_asset(queue="orders")(body)


def test_an_async_function_is_refused_when_it_is_defined() -> None:
    async def body(batch: SparkBatch) -> list[str]:
        return []

    with pytest.raises(dg.DagsterInvalidDefinitionError, match="body is async"):
        pgque_asset(queue="orders")(body)
