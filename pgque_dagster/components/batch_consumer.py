"""`BatchConsumerComponent`: an asset that a function computes from the batches of a queue."""

from datetime import timedelta
from typing import Annotated, Any, Self

import dagster as dg
from pydantic import Field, model_validator

from ..assets.decorators import pgque_asset
from ..assets.replay import pgque_replay_asset
from ..checks import build_consumer_lag_checks
from ..client import Position
from ..ranges import DEFAULT_MAX_EVENTS, LONGEST_LEASE, MOST_PARTITIONS
from ..sensors.batch_schedule import build_pgque_schedule
from ..sensors.batch_sensor import build_pgque_sensor
from ..sensors.run_requests import OnExhausted
from .asset_options import SharedAssetOptions
from .computed import Computed, arguments_of
from .options import Options, condition, duration, number, option, start
from .scaffolding import BatchConsumerScaffolder
from .schedules import ScheduleOptions


class SensorOptions(Options):
    """Options of `build_pgque_sensor`."""

    name: Annotated[str | None, option("The sensor's name; by default `<asset>_sensor`.")] = None
    min_events: Annotated[int, number("The minimum number of events for a run.", at_least=0)] = 1
    max_events: Annotated[int, number("The approximate maximum number of events in a run.")] = (
        DEFAULT_MAX_EVENTS
    )
    max_age: Annotated[
        timedelta, duration("How long an event waits for min_events to be reached.")
    ] = timedelta(seconds=60)
    max_attempts: Annotated[int, number("How many runs may claim a batch and fail.")] = 3
    backoff: Annotated[timedelta, duration("The wait after the first failure.")] = timedelta(
        seconds=10
    )
    on_exhausted: Annotated[
        OnExhausted,
        option("What happens to a batch after its last attempt failed: hold or dead_letter."),
    ] = "hold"
    max_runs: Annotated[
        int | None,
        number(
            "The maximum number of runs that one evaluation requests; null for no limit.",
            or_null=True,
        ),
    ] = None
    parallel_runs: Annotated[
        int, number("How many batches of the consumer may be in progress at a time.")
    ] = 1
    tick_wait: Annotated[
        timedelta, duration("How long an evaluation that finds nothing to do waits for a tick.")
    ] = timedelta(seconds=5)
    minimum_interval_seconds: Annotated[
        int, number("The minimum time between two evaluations.")
    ] = 1
    default_status: Annotated[
        dg.DefaultSensorStatus, option("RUNNING, or STOPPED until it is switched on in the UI.")
    ] = dg.DefaultSensorStatus.STOPPED

    @classmethod
    def check_values(cls, values: Any) -> None:
        """Refuses a minimum above the maximum."""
        least, most = (cls.value_of(values, name) for name in ("min_events", "max_events"))
        if isinstance(least, int) and isinstance(most, int) and least > most:
            raise ValueError(f"min_events is {least}: it must be from 0 to max_events ({most})")


class ConsumerLagChecks(Options):
    """Options of `build_consumer_lag_checks`."""

    max_lag: Annotated[timedelta, duration("How far the consumer may be behind.", positive=True)]
    warn_lag: Annotated[
        timedelta | None, duration("Beyond this the check warns.", positive=True)
    ] = None
    max_pending_events: Annotated[
        int | None, number("How many events may wait for the consumer.", at_least=0, or_null=True)
    ] = None
    severity: Annotated[
        dg.AssetCheckSeverity, option("The severity of a failure: ERROR or WARN.")
    ] = dg.AssetCheckSeverity.ERROR
    automation_condition: Annotated[
        dg.AutomationCondition[dg.AssetCheckKey] | None,
        condition("When Dagster evaluates the check by itself."),
    ] = None


class ReplayOptions(Options):
    """Options of `pgque_replay_asset`; the other ones are those of the consumer's asset."""

    name: Annotated[str | None, option("The asset's name; by default `<asset>_replay`.")] = None
    group_name: Annotated[str | None, option("The asset's group.", "replays")] = None


class AssetOptions(SharedAssetOptions):
    """Options of `pgque_asset`."""

    consumer: Annotated[str | None, option("The consumer's name; by default the asset's name.")] = (
        None
    )
    start_at: Annotated[
        Position | None,
        start("Where a new consumer starts; by default at the last tick of its queue."),
    ] = None
    partitions: Annotated[
        int | None,
        number(
            "The number of slots among which the keys of events are divided. The events of a key "
            "are computed in order, and a slot has one run at a time. null for no slots.",
            8,
            at_most=MOST_PARTITIONS,
            or_null=True,
        ),
    ] = None
    lease_ttl: Annotated[
        timedelta,
        duration(
            "How long the lease of a run that died lasts.", positive=True, at_most=LONGEST_LEASE
        ),
    ] = timedelta(minutes=1)
    returns_nothing: Annotated[
        bool,
        option("Whether the transform stores its results itself; same as annotating it -> None."),
    ] = False
    batch_safe: Annotated[
        bool,
        option("Whether the IO manager of io_manager_key keeps batches apart, as you know."),
    ] = False
    check_specs: Annotated[
        list[dg.ResolvedAssetCheckSpec], option("Checks whose results the transform yields.")
    ] = Field(default=[])

    def arguments(self) -> dict[str, Any]:
        """Returns the attributes as arguments of `pgque_asset`."""
        return arguments_of(self, AssetOptions)


@dg.scaffold_with(BatchConsumerScaffolder)
class BatchConsumerComponent(AssetOptions, Computed, dg.Component):
    """A consumer of a queue: the asset that a function computes from its batches, and its sensor.

    The transform gets the payloads as a DataFrame, or the events if `payload` is left out. It may
    have further parameters as a `@pgque_asset` does: `context`, `batch`, resources, upstream
    assets. If its first parameter is `batch`, it gets the batch instead of a DataFrame. The sink
    stores its result, and then the batch is acked.

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
        option("When the consumer gets runs, in place of the sensor; if left out, by the sensor."),
    ] = None
    replay: Annotated[
        ReplayOptions | None,
        option("An asset that computes past events again; if left out, there is none."),
    ] = None
    consumer_lag_checks: Annotated[
        ConsumerLagChecks | None, option("A check on the lag; if left out, there is none.")
    ] = None

    @classmethod
    def check_values(cls, values: Any) -> None:
        """Refuses empty names, and several batches at a time for slots, which have one each."""
        for name in ("name", "consumer"):
            if cls.value_of(values, name) == "":
                raise ValueError(f"{name} is empty: write a name, or leave it out")
        parallel = getattr(cls.value_of(values, "sensor"), "parallel_runs", 1)
        if cls.value_of(values, "partitions") is not None and parallel != 1:
            raise ValueError(
                f"parallel_runs of the sensor is {parallel}: leave it out, because `partitions` "
                "already get runs side by side"
            )

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        if self.schedule is not None and self.sensor not in (None, SensorOptions()):
            raise ValueError("`schedule` takes the place of `sensor`: leave one of them out")
        return self

    @property
    def asset_key(self) -> dg.AssetKey:
        """The asset's key."""
        return dg.AssetKey([*(self.key_prefix or ()), self.asset_name])

    @property
    def consumer_name(self) -> str:
        """The consumer's name, unique in its queue."""
        return self.consumer or self.asset_name

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Builds the asset, its replay asset, check, sensor or schedule, and IO manager."""
        key, resources = self.io_manager()
        options = {**self.arguments(), "io_manager_key": key}
        asset = pgque_asset(**options)(self.compute_fn()).map_asset_specs(self.get_asset_spec)
        return dg.Definitions(
            assets=[asset, *self._replays(asset, key)],
            asset_checks=self._checks(asset),
            sensors=self._sensors(asset),
            schedules=self._schedules(asset),
            resources=resources,
        )

    def _replays(
        self, asset: dg.AssetsDefinition, io_manager_key: str | None
    ) -> list[dg.AssetsDefinition]:
        if self.replay is None:
            return []
        decorate = pgque_replay_asset(
            queue=self.queue,
            of=asset,
            lease_ttl=self.lease_ttl,
            slices=self.slices,
            timeout=self.timeout,
            key_prefix=self.key_prefix,
            kinds=None if self.kinds is None else set(self.kinds),
            io_manager_key=io_manager_key,
            **self.replay.arguments(),
        )
        return [decorate(self.compute_fn())]

    def _sensors(self, asset: dg.AssetsDefinition) -> list[dg.SensorDefinition]:
        if self.sensor is None or self.schedule is not None:
            return []
        options = self.sensor.arguments()
        options["name"] = self.sensor.name or f"{self.asset_name}_sensor"
        return [build_pgque_sensor([asset], **options)]

    def _schedules(self, asset: dg.AssetsDefinition) -> list[dg.ScheduleDefinition]:
        if self.schedule is None:
            return []
        options = self.schedule.arguments()
        options["name"] = self.schedule.name or f"{self.asset_name}_schedule"
        return [build_pgque_schedule([asset], **options)]

    def _checks(self, asset: dg.AssetsDefinition) -> list[dg.AssetChecksDefinition]:
        if self.consumer_lag_checks is None:
            return []
        return build_consumer_lag_checks([asset], **self.consumer_lag_checks.arguments())
