"""A batch is acked when all of it is stored and checked, whatever shape its results have.

Each shape runs over three batches of one run, so that the second goes the way of later batches. A
table in Postgres tells what was stored, and the queue what it still delivers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import SparkBatch, pgque_asset, pgque_multi_asset, pgque_replay_asset
from pgque_dagster.client import Client
from tests.dagster.support import materialize
from tests.support.events import claim, publish
from tests.support.table_io_managers import (
    TableIOManager,
    YieldingTableIOManager,
    make_table,
    store,
    stored,
)

SENT = ["a", "b", "c"]
MANAGERS = [TableIOManager, YieldingTableIOManager]
Made = Callable[[list[str]], Any]


@dataclass(frozen=True)
class Shape:
    """What a function returns of a batch's payloads, and the options that go with it."""

    name: str
    make: Made
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


def shapes(*found: Shape) -> Any:
    return pytest.mark.parametrize("shape", found, ids=str)


def yields(*results: Any) -> Iterator[Any]:
    yield from results


def passes(**names: Any) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=True, **names)


def fails(**names: Any) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=False, **names)


def check(name: str, asset: str = "kept", *, blocking: bool = True) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(name, asset=asset, blocking=blocking)


@pytest.fixture(autouse=True)
def one_event_a_batch(monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
    from pgque_dagster import claiming
    from pgque_dagster.client import Limits

    monkeypatch.setattr(claiming, "_AT_ONCE", Limits(max_count=1))
    make_table(client.url)


def function(good: Made, bad: Made | None = None, wrong: str = "") -> Callable[[SparkBatch], Any]:
    """A function that makes something else of one payload."""

    def body(batch):  # type: ignore[no-untyped-def]
        payloads = [row.ev_data for row in batch.events(["ev_data"]).collect()]
        return (bad if bad and payloads == [wrong] else good)(payloads)

    return body


def run(
    client: Client,
    spark: SparkSession,
    asset: dg.AssetsDefinition,
    manager: type[TableIOManager] = TableIOManager,
) -> dg.ExecuteInProcessResult:
    for payload in SENT:
        publish(client, [payload])
    return materialize(asset, client.url, spark, io_manager=manager(client.url))


def still_delivered(client: Client) -> list[str]:
    found = []
    while (batch := client.claim("orders", "revenue", owner="a test")) is not None:
        found += [message.payload for message in batch.events()]
        batch.ack()
    return found


def asset_of(shape: Shape, body: Callable[[SparkBatch], Any]) -> dg.AssetsDefinition:
    options = {"queue": "orders", "consumer": "revenue", "name": "kept", "max_batches": 9}
    return pgque_asset(**{**options, **shape.options})(body)  # type: ignore[arg-type]


# One asset

BLOCKING = {"check_specs": [check("plausible")]}

GOOD = shapes(
    Shape("a value", lambda v: v),
    Shape("an Output", lambda v: dg.Output(v)),
    Shape("a MaterializeResult with a value", lambda v: dg.MaterializeResult(value=v)),
    Shape("a yielded value", lambda v: yields(v)),
    Shape("a value and a check", lambda v: (v, passes()), BLOCKING),
    Shape("an Output and then a check", lambda v: yields(dg.Output(v), passes()), BLOCKING),
    Shape(
        "a check in a MaterializeResult",
        lambda v: dg.MaterializeResult(value=v, check_results=[passes(check_name="plausible")]),
        BLOCKING,
    ),
    Shape(
        "a check that fails as a warning",
        lambda v: yields(v, fails(severity=dg.AssetCheckSeverity.WARN)),
        BLOCKING,
    ),
    Shape(
        "records beside the value",
        lambda v: yields(dg.AssetObservation("elsewhere"), v, dg.AssetMaterialization("beside")),
    ),
    Shape("the type that is declared", lambda v: v, {"dagster_type": dg.List[str]}),
)


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


def good_for(shape: Shape) -> Made:
    """What a function with the shape's options has to return."""
    names = [spec.name for spec in shape.options.get("check_specs", ())]
    return lambda v: yields(v, *(passes(check_name=name) for name in names))


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
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="says that it returns nothing"):
        pgque_asset(queue="orders", io_manager_key="table")(body)
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="says that it returns nothing"):
        pgque_multi_asset(queue="orders", outs=outs)(body)
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="says that it returns nothing"):
        pgque_replay_asset(queue="orders")(body)


def test_an_async_function_is_refused_when_it_is_defined() -> None:
    async def body(batch: SparkBatch) -> list[str]:
        return []

    with pytest.raises(dg.DagsterInvalidDefinitionError, match="body is async"):
        pgque_asset(queue="orders")(body)


# Several assets

TWO = {
    "check_specs": [
        check("plausible", "totals"),
        check("same", "totals"),
        check("same", "counts", blocking=False),
    ]
}


def both(v: list[str]) -> Iterator[Any]:
    return yields(dg.Output(v, output_name="totals"), dg.Output(v, output_name="counts"))


def judged(v: list[str], *others: Any) -> Iterator[Any]:
    """Both outputs, with results of those checks that the others leave out."""
    told = {(each.asset_key and each.asset_key.path[-1], each.check_name) for each in others}
    yield from both(v)
    yield from others
    for spec in TWO["check_specs"]:
        if (spec.asset_key.path[-1], spec.name) not in told:
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
    Shape("outputs and checks", judged, TWO),
    Shape(
        "a check that blocks on the other asset only",
        lambda v: judged(v, fails(asset_key="counts", check_name="same")),
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
        lambda v: judged(v, fails(asset_key="totals", check_name="same")),
        TWO,
    ),
    Shape(
        "a failed check without a name",
        lambda v: judged(v, fails(asset_key="counts")),
        {"check_specs": [check("only", "totals"), check("other", "counts")]},
    ),
    Shape("a failed check of no asset", lambda v: judged(v, fails(check_name="plausible")), TWO),
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
