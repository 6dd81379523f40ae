"""`BatchConsumerComponent`: an asset that a function computes from the batches of a queue."""

from typing import Annotated, Self

import dagster as dg
from pydantic import Field, model_validator

from ..assets.decorators import pgque_asset
from ..checks.lag import build_consumer_lag_checks
from ..project.consumers import AssetConsumer
from ..project.database import Database
from ..sensors.batch_schedule import build_pgque_schedule
from ..sensors.batch_sensor import build_pgque_sensor
from .computed import Computed, OfDagster
from .consuming import Consuming
from .options import built, mirror, option
from .scaffolding import BatchConsumerScaffolder


class SensorOptions(mirror(build_pgque_sensor, leave_out=["assets"], named="<asset>_sensor")):
    """Options of `build_pgque_sensor`."""


class ScheduleOptions(
    mirror(
        build_pgque_schedule,
        like=[build_pgque_sensor],
        leave_out=["assets"],
        named="<asset>_schedule",
    )
):
    """Options of `build_pgque_schedule`."""


class ConsumerLagChecks(mirror(build_consumer_lag_checks, leave_out=["assets"])):
    """Options of `build_consumer_lag_checks`."""


class AssetOptions(
    mirror(pgque_asset, more=OfDagster, leave_out=["partitions_def", "leave_out_failed"])
):
    """Options of `pgque_asset`."""

    check_specs: Annotated[
        list[dg.ResolvedAssetCheckSpec], option("Checks whose results the transform yields.")
    ] = Field(default=[])


@dg.scaffold_with(BatchConsumerScaffolder)
class BatchConsumerComponent(AssetOptions, Computed, Consuming, dg.Component):
    """A consumer of a queue: the asset that a function computes from its batches, and its sensor.

    The transform gets the payloads as a DataFrame, or the events if `payload` is left out. It may
    have the other parameters of a `@pgque_asset`: `context`, `batch`, resources, upstream assets.
    If its first parameter is `batch`, it gets the batch instead of a DataFrame. The sink stores its
    result, and then the batch is acked.

    Example:
        .. code-block:: yaml

            type: pgque_dagster.BatchConsumerComponent
            attributes:
              queue: orders
              transform: .transform.revenue
              payload:
                schema: product string not null, total double not null
              sink:
                base_dir: output
              sensor:
                max_age: 10s

        .. code-block:: python

            def revenue(orders: DataFrame) -> DataFrame:
                return orders.groupBy("product").sum("total")

        A subclass may change the asset and how a batch is computed:

        .. code-block:: python

            class DailyRevenue(BatchConsumerComponent):
                def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
                    return spec.merge_attributes(tags={"team": "sales"})

                def execute(self, context, batch, **inputs):
                    context.log.info(f"{batch.event_count} orders")
                    return super().execute(context, batch, **inputs).withColumn(
                        "day", functions.current_date()
                    )
    """

    sensor: Annotated[
        SensorOptions | None, option("When batches get runs; null for no sensor.")
    ] = SensorOptions()
    schedule: Annotated[
        ScheduleOptions | None,
        option("When the consumer gets runs, instead of by the sensor; by default, by the sensor."),
    ] = None
    consumer_lag_checks: Annotated[
        ConsumerLagChecks | None, option("A check on the lag; if left out, there is no check.")
    ] = None

    @model_validator(mode="after")
    def _check_names_and_schedule(self) -> Self:
        for name in ("name", "consumer"):
            if getattr(self, name) == "":
                raise ValueError(f"{name} is empty: write a name, or leave it out")
        if self.schedule is not None and self.sensor not in (None, SensorOptions()):
            raise ValueError("`schedule` replaces `sensor`: leave one of them out")
        return self

    @property
    def asset_consumers(self) -> list[AssetConsumer]:
        """The consumer, or the consumers of each shard, with the key of its asset."""
        key = dg.AssetKey([*(self.key_prefix or ()), self.asset_name])
        name = self.consumer or self.asset_name
        return [
            AssetConsumer(self.queue, name, (key,), database=Database(each))
            for each in self.databases or [self.database]
        ]

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Builds the asset, its check, sensor or schedule, and IO manager."""
        asset, resources = self.asset_and_resources()
        sensor = self.sensor if self.schedule is None else None
        name = Database(self.database).named(self.asset_name)
        return dg.Definitions(
            assets=[asset],
            asset_checks=built(self.consumer_lag_checks, [asset]),
            sensors=built(sensor, [asset], name=f"{name}_sensor"),
            schedules=built(self.schedule, [asset], name=f"{name}_schedule"),
            resources=resources,
        )
