"""A batch is acked when its whole output is stored and checked, whatever shape its results have."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import dagster as dg
import pytest

from pgque_dagster import SparkBatch, pgque_asset, pgque_multi_asset
from tests.dagster.orders import Orders, Result, consuming, materialized, values

SENT = ["a", "b", "c"]
kept = partial(consuming, name="kept")
Made = Callable[[list[str]], Any]


def texts(batch: SparkBatch) -> list[str | None]:
    return [event.payload for event in batch.claim.events()]


@pytest.fixture
def database_url(reused_database_url: str) -> str:
    return reused_database_url


class Table(dg.IOManager):
    """Keeps what it is given by asset, None as no rows; an attempt replaces an earlier one."""

    batch_safe = True

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], list[str]] = {}

    def store(self, asset: str, batch_id: int, payloads: list[str]) -> None:
        self._rows[asset, batch_id] = payloads

    def stored(self, asset: str) -> list[str]:
        return sorted(each for key, rows in self._rows.items() if key[0] == asset for each in rows)

    def handle_output(self, context: dg.OutputContext, obj: Any) -> Any:
        batch_id = (context.output_metadata or {})["pgque/batch_id"].value
        self.store(context.asset_key.to_user_string(), int(str(batch_id)), list(obj or ()))

    def load_input(self, context: dg.InputContext) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class Shape:
    """What a function returns for a batch's payloads, and the asset options that belong to it."""

    name: str
    make: Made
    options: dict[str, Any] = field(default_factory=dict)
    assets: tuple[str, ...] = ("kept",)

    def asset(self) -> dg.AssetsDefinition:
        """The assets of a function that returns this shape of a batch's payloads."""

        def body(batch):  # type: ignore[no-untyped-def]
            return self.make(texts(batch))

        if self.assets == ("kept",):
            return kept(**self.options)(body)
        outs = {name: dg.AssetOut(is_required=True) for name in self.assets}
        return pgque_multi_asset(queue="orders", consumer="revenue", outs=outs, **self.options)(
            body
        )


def two(name: str, make: Made, options: dict[str, Any] | None = None) -> Shape:
    return Shape(name, make, options or {}, ("totals", "counts"))


def shapes(*found: Any) -> Any:
    return pytest.mark.parametrize("shape", found, ids=lambda shape: shape.name)


def batches_of(result: Result, asset: str) -> list[tuple[str, int]]:
    """The queue and the number of events that each materialization tells."""
    made = map(values, materialized(result, asset))
    return [(each["pgque/queue"], each["pgque/events"]) for each in made]


def yields(*results: Any) -> Iterator[Any]:
    yield from results


def passes(**names: Any) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=True, **names)


def fails(**names: Any) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=False, **names)


def evaluated(name: str, **options: Any) -> dg.AssetCheckEvaluation:
    key = dg.AssetKey("kept")
    return dg.AssetCheckEvaluation(asset_key=key, check_name=name, metadata={}, **options)


def check(name: str, asset: str = "kept", *, blocking: bool = True) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(name, asset=asset, blocking=blocking)


BLOCKING = {"check_specs": [check("plausible")]}


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


@shapes(
    Shape("a value", lambda v: v),
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
        "a check that does not block",
        lambda v: yields(v, fails()),
        {"check_specs": [check("plausible", blocking=False)]},
    ),
    Shape(
        "records beside the value",
        lambda v: yields(dg.AssetObservation("elsewhere"), v, dg.AssetMaterialization("beside")),
    ),
    Shape("the type that is declared", lambda v: v, {"dagster_type": dg.List[str]}),
    two("a tuple", lambda v: (v, v)),
    two(
        "two MaterializeResults",
        lambda v: yields(
            *(dg.MaterializeResult(value=v, asset_key=k) for k in ("totals", "counts"))
        ),
    ),
    two("outputs and checks", with_checks, TWO),
    two(
        "a check that blocks on the other asset only",
        lambda v: with_checks(v, fails(asset_key="counts", check_name="same")),
        TWO,
    ),
)
def test_what_is_stored_and_checked_is_acked(orders: Orders, shape: Shape) -> None:
    orders.publish(SENT)
    table = Table()

    result = orders.run(shape.asset(), manager=table)

    assert result.success
    for name in shape.assets:
        assert table.stored(name) == SENT
        assert batches_of(result, name) == [("orders", len(SENT))]
    assert orders.left() == []


@shapes(
    Shape("None", lambda v: None),
    Shape("nothing yielded", lambda v: yields()),
    Shape("a MaterializeResult of None", lambda v: dg.MaterializeResult(value=None)),
    Shape("a DynamicOutput", lambda v: yields(dg.DynamicOutput(v, "x"))),
    Shape("two values", lambda v: yields(v, ["more"])),
    Shape("a list of results", lambda v: [dg.Output(v)]),
    Shape("results that nobody iterated", lambda v: map(dg.Output, [v])),
    Shape("an output that there is not", lambda v: yields(dg.Output(v, output_name="kept"))),
    Shape("another asset", lambda v: dg.MaterializeResult(value=v, asset_key="other")),
    Shape("nothing but a check", lambda v: yields(passes()), BLOCKING),
    Shape("no check", lambda v: v, BLOCKING),
    Shape("no check of a warning", lambda v: v, {"check_specs": [check("x", blocking=False)]}),
    Shape("a failed check by its name", lambda v: (v, fails(check_name="plausible")), BLOCKING),
    Shape(
        "a failed check of what it stored",
        lambda v: dg.MaterializeResult(value=v, check_results=[fails(check_name="plausible")]),
        BLOCKING,
    ),
    Shape("a check that fails and then passes", lambda v: yields(v, fails(), passes()), BLOCKING),
    Shape(
        "an evaluation that fails",
        lambda v: yields(v, evaluated("of its own", passed=False, blocking=True)),
    ),
    Shape(
        "an evaluation in the place of a result",
        lambda v: yields(v, evaluated("plausible", passed=True)),
        BLOCKING,
    ),
    Shape("another type", lambda v: "text", {"dagster_type": dg.List[str]}),
    two("None", lambda v: None),
    two("a tuple with None", lambda v: (v, None)),
    two("one of two", lambda v: yields(dg.Output(v, output_name="totals"))),
    two("one of two twice", lambda v: yields(*both(v), dg.Output(v, output_name="counts"))),
    two(
        "a failed check by its name",
        lambda v: with_checks(v, fails(asset_key="totals", check_name="same")),
        TWO,
    ),
)
def test_what_is_not_stored_or_not_checked_is_not_acked(orders: Orders, shape: Shape) -> None:
    orders.publish(SENT)

    assert not orders.run(shape.asset(), manager=Table()).success
    assert orders.is_free()
    assert orders.left() == SENT


# Functions that store their results themselves


@pytest.mark.parametrize("shape", ["returns", "yields nothing", "yields a check"])
def test_a_function_that_says_so_returns_nothing(orders: Orders, shape: str) -> None:
    table = Table()
    results = [passes()] if shape == "yields a check" else []

    def body(batch):  # type: ignore[no-untyped-def]
        table.store("kept", batch.batch_id, texts(batch))
        return yields(*results) if shape.startswith("yields") else None

    body.__annotations__ = {"return": None}
    orders.publish(SENT)

    result = orders.run(kept(**(BLOCKING if results else {}))(body))

    assert result.success
    assert batches_of(result, "kept") == [("orders", len(SENT))]
    assert table.stored("kept") == SENT
    assert orders.left() == []


def test_an_asset_with_checks_is_skipped_where_there_is_no_batch(orders: Orders) -> None:
    result = orders.run(Shape("", lambda v: (v, passes()), BLOCKING).asset())

    assert result.success
    assert materialized(result) == []


def test_a_function_that_says_that_it_returns_nothing_may_not_return_a_value(
    orders: Orders,
) -> None:
    def body(batch: SparkBatch) -> None:
        return ["lost"]  # type: ignore[return-value]

    orders.publish(SENT)

    assert not orders.run(kept()(body)).success
    assert orders.left() == SENT


def test_a_function_cannot_return_nothing_where_an_io_manager_is_named() -> None:
    def body(batch: SparkBatch) -> None: ...

    outs = {"totals": dg.AssetOut(), "counts": dg.AssetOut()}
    for decorator in (
        pgque_asset(queue="orders", io_manager_key="table"),
        pgque_multi_asset(queue="orders", outs=outs),
    ):
        with pytest.raises(dg.DagsterInvalidDefinitionError, match="is declared to return nothing"):
            decorator(body)
