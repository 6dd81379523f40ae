"""Assets that could not tell which batches are new for them are refused."""

from typing import Any

import dagster as dg

from pgque_dagster import pgque_asset
from tests.dagster.assets.new_batches import NEW, BatchIds, Pair, report_to
from tests.dagster.orders import error_of


class Replacing(BatchIds):
    batch_safe = False


def test_an_asset_whose_io_manager_may_replace_earlier_output_is_refused(pair: Pair) -> None:
    @dg.asset(ins={"numbers": dg.AssetIn(metadata=NEW)}, io_manager_key="replacing")
    def report(numbers):  # type: ignore[no-untyped-def]
        return len(numbers)

    pair.store_batch()
    replacing = pair.run(report, resources={"replacing": Replacing()})
    keeping = pair.run(report, resources={"replacing": BatchIds()})

    refused = "IO manager replacing may replace what report made of earlier batches of numbers"
    assert refused in error_of(replacing)
    assert keeping.success


def test_steps_that_cannot_record_what_they_have_had_are_refused(pair: Pair) -> None:
    ins = {"numbers": dg.AssetIn(metadata=NEW)}

    @dg.asset(ins=ins, partitions_def=dg.StaticPartitionsDefinition(["a"]))
    def partitioned(numbers) -> None: ...  # type: ignore[no-untyped-def]

    @pgque_asset(queue="orders", consumer="others", ins=ins)
    def of_batches(batch, numbers) -> None: ...  # type: ignore[no-untyped-def]

    @dg.asset_check(asset="report", additional_ins=ins)
    def checked(numbers):  # type: ignore[no-untyped-def]
        return dg.AssetCheckResult(passed=True)

    @dg.op(ins={"numbers": dg.In(metadata=NEW)}, out=dg.Out(dg.Nothing))
    def noting(numbers) -> None: ...  # type: ignore[no-untyped-def]

    @dg.graph_asset(ins={"numbers": dg.AssetIn()})
    def of_graph(numbers):  # type: ignore[no-untyped-def]
        return noting(numbers)

    pair.store_batch()
    found: Any = (
        (partitioned, {"partition_key": "a"}),
        (of_batches, {}),
        (checked, {"selection": dg.AssetSelection.checks(checked)}),
        (of_graph, {}),
    )
    for each, options in found:
        refused = 'cannot have pgque/batches: "new" for numbers'
        assert refused in error_of(pair.run(each, **options))


def test_an_instance_that_knows_no_materialization_is_refused(pair: Pair) -> None:
    refused = "this instance of Dagster has no materialization of numbers"
    assert refused in error_of(pair.run(report_to(print)))
