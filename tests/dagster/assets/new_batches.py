"""An asset of batches, and one downstream of it that wants the new ones."""

from collections.abc import Callable
from typing import Any

import dagster as dg
from pyspark.sql import DataFrame

from pgque_dagster import SparkBatch
from pgque_dagster.assets.inputs import wanted_batches
from tests.dagster.orders import Orders, consuming, materialized, values

EAGER = dg.AutomationCondition.eager()
NEW = {"pgque/batches": "new"}
RECORD = "pgque/batches.numbers"


@consuming()
def numbers(batch: SparkBatch) -> DataFrame:
    return batch.payload("number bigint not null")


class BatchIds(dg.IOManager):
    """Stores no rows. An input is the ids of the batches that it wants."""

    batch_safe = True

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None: ...

    def load_input(self, context: dg.InputContext) -> frozenset[int] | None:
        return wanted_batches(context)


@consuming(name="numbers")
def counted(batch: SparkBatch) -> int:
    return batch.event_count


def report_to(
    call: Callable[[Any], object], name: str = "report", **options: Any
) -> dg.AssetsDefinition:
    """An asset downstream of `numbers` that stores by a function what it gets."""

    ins = {"numbers": dg.AssetIn(metadata=NEW)}

    @dg.asset(name=name, ins=ins, automation_condition=EAGER, **options)
    def report(numbers) -> None:  # type: ignore[no-untyped-def]
        call(numbers)

    return report


def recorded(instance: dg.DagsterInstance) -> list[list[int]]:
    """Returns the batches that each materialization of the asset records as new, in order."""
    key = dg.AssetKey("report")
    found = instance.fetch_materializations(key, limit=1000, ascending=True).records
    made: list[Any] = [each.asset_materialization for each in found]
    return [list(map(int, each.metadata[RECORD].value["new"])) for each in made]


class Pair:
    """The upstream asset and one downstream of it, each materialized in runs of its own."""

    def __init__(
        self, orders: Orders, instance: dg.DagsterInstance, *, manager: Any = None
    ) -> None:
        self.orders, self.instance = orders, instance
        self.manager = manager or BatchIds()
        self.upstream = numbers if manager else counted
        self.count = 0

    def store_batch(self) -> int:
        """Stores a batch of one event, by a run; returns its id."""
        self.count += 1
        self.orders.publish([{"number": self.count}])
        result = self.orders.run(self.upstream, manager=self.manager, instance=self.instance)
        (made,) = materialized(result, "numbers")
        assert result.success
        return int(values(made)["pgque/batch_id"])

    def run(self, report: dg.AssetsDefinition, **options: Any) -> dg.ExecuteInProcessResult:
        return self.orders.run(
            report,
            self.upstream.to_source_asset(),
            manager=self.manager,
            instance=self.instance,
            **{"selection": [report], **options},
        )
