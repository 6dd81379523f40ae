"""Shapes of results that functions return for a batch, and a run of three batches with them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import SparkBatch
from pgque_dagster.client import Client
from tests.dagster.support import materialize
from tests.support.events import publish
from tests.support.table_io_managers import TableIOManager, YieldingTableIOManager

SENT = ["a", "b", "c"]
MANAGERS = [TableIOManager, YieldingTableIOManager]
Made = Callable[[list[str]], Any]


@dataclass(frozen=True)
class Shape:
    """What a function returns for a batch's payloads, and the asset options that belong to it."""

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


def function(good: Made, bad: Made | None = None, wrong: str = "") -> Callable[[SparkBatch], Any]:
    """A function that returns something else for one payload."""

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


def good_for(shape: Shape) -> Made:
    """What a function with the shape's options must return."""
    names = [spec.name for spec in shape.options.get("check_specs", ())]
    return lambda v: yields(v, *(passes(check_name=name) for name in names))
