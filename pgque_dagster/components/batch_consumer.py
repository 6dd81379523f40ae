"""`BatchConsumerComponent`: an asset that a function computes from the batches of a queue."""

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any, Self

import dagster as dg
from pydantic import Field, model_validator

from ..assets.decorators import pgque_asset
from ..assets.replay import pgque_replay_asset
from ..checks import build_consumer_lag_checks
from ..ranges import LONGEST_LEASE
from ..sensors.batch_sensor import build_pgque_sensor
from ..sensors.run_requests import OnExhausted
from ..spark import SparkBatch
from .options import Options, condition, duration, number, option
from .payload import Payload
from .scaffolding import BatchConsumerScaffolder
from .sinks import Sink, sink_option
from .transforms import Transform, load_function

# Parameters that a transform may have, as the function of a @pgque_asset.
_OFFERED = ("context", "batch")


class SensorOptions(Options):
    """Options of `build_pgque_sensor`."""

    name: Annotated[str | None, option("The sensor's name; by default `<asset>_sensor`.")] = None
    min_events: Annotated[int, number("The minimum number of events for a run.", at_least=0)] = 1
    max_events: Annotated[int, number("The approximate maximum number of events in a run.")] = (
        1_000_000
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
    minimum_interval_seconds: Annotated[
        int, number("The minimum time between two evaluations.")
    ] = 5
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


class AssetOptions(Options):
    """Options of `pgque_asset`."""

    queue: Annotated[str, option("The queue's name.", "orders")]
    consumer: Annotated[str | None, option("The consumer's name; by default the asset's name.")] = (
        None
    )
    lease_ttl: Annotated[
        timedelta,
        duration(
            "How long the lease of a run that died lasts.", positive=True, at_most=LONGEST_LEASE
        ),
    ] = timedelta(minutes=1)
    slices: Annotated[
        int, number("The maximum number of partitions in which a large batch is read.")
    ] = 4
    max_batches: Annotated[int, number("The maximum number of batches in one run.")] = 1
    max_seconds: Annotated[
        float | None, option("After this time the run claims no further batch.", 300)
    ] = None
    timeout: Annotated[
        timedelta | None,
        duration("How long the work on one batch may take before the run fails.", positive=True),
    ] = None
    returns_nothing: Annotated[
        bool,
        option("Whether the transform stores its results itself; same as annotating it -> None."),
    ] = False
    batch_safe: Annotated[
        bool,
        option("Whether the IO manager of io_manager_key keeps batches apart, as you know."),
    ] = False
    name: Annotated[str | None, option("The asset's name; by default the transform's.")] = None
    key_prefix: Annotated[list[str] | None, option("Prefix of the asset's key.", ["bank"])] = None
    deps: Annotated[
        list[dg.ResolvedAssetKey], option("Upstream assets besides the queue.", ["rates"])
    ] = Field(default=[])
    description: Annotated[
        str | None, option("Of the asset; by default the transform's docstring.")
    ] = None
    kinds: Annotated[list[str] | None, option("Shown with the asset; by default pyspark.")] = None
    group_name: Annotated[str | None, option("The asset's group.", "sales")] = None
    owners: Annotated[list[str] | None, option("Of the asset.", ["team:sales"])] = None
    tags: Annotated[dict[str, str] | None, option("Of the asset.", {"tier": "gold"})] = None
    metadata: Annotated[dict[str, Any] | None, option("Of the asset.")] = None
    code_version: Annotated[str | None, option("Of the transform.", "3")] = None
    automation_condition: Annotated[
        dg.AutomationCondition[dg.AssetKey] | None,
        condition("When Dagster materializes the asset automatically, besides its sensor."),
    ] = None
    freshness_policy: Annotated[
        dg.FreshnessPolicy | None,
        dg.Resolver.default(
            model_field_type=str | None, description="Of the asset, as a template."
        ),
    ] = None
    check_specs: Annotated[
        list[dg.ResolvedAssetCheckSpec], option("Checks whose results the transform yields.")
    ] = Field(default=[])
    io_manager_key: Annotated[
        str | None, option("The key of the IO manager, if it is a resource that you define.")
    ] = None
    op_tags: Annotated[dict[str, Any] | None, option("Of the step that computes it.")] = None
    pool: Annotated[
        str | None, option("A pool that limits how many steps run at the same time.")
    ] = None

    def arguments(self) -> dict[str, Any]:
        """Returns the attributes as arguments of `pgque_asset`."""
        own = {name: getattr(self, name) for name in AssetOptions.model_fields}
        return {**own, "kinds": None if self.kinds is None else set(self.kinds)}


@dg.scaffold_with(BatchConsumerScaffolder)
class BatchConsumerComponent(AssetOptions, dg.Component):
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

    transform: Annotated[
        Transform,
        dg.Resolver(
            load_function,
            model_field_type=str,
            description="The import path of the function that computes the asset. A leading dot "
            "stands for the folder of this file.",
            examples=[".transform.revenue", "my_project.transforms.revenue"],
        ),
    ]
    payload: Annotated[
        Payload | None, option("How to read payloads; if left out, the transform gets the events.")
    ] = None
    sink: Annotated[
        Sink | None, sink_option("Where to store the result; if left out, by io_manager_key.")
    ] = None
    sensor: Annotated[
        SensorOptions | None, option("When batches get runs; null for no sensor.")
    ] = SensorOptions()
    replay: Annotated[
        ReplayOptions | None,
        option("An asset that computes past events again; if left out, there is none."),
    ] = None
    consumer_lag_checks: Annotated[
        ConsumerLagChecks | None, option("A check on the lag; if left out, there is none.")
    ] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self._parameters:
            raise ValueError("the transform has no parameter: add one, to get the DataFrame")
        if self.payload is not None and not self._takes_data_frame:
            raise ValueError(
                f"the transform's first parameter is {next(iter(self._parameters))!r}, so "
                "`payload` has no effect: leave out `payload`, or rename the parameter"
            )
        if self.sink is not None and self.io_manager_key is not None:
            raise ValueError("`sink` and `io_manager_key` both say where to store: leave one out")
        return self

    @property
    def asset_name(self) -> str:
        """The last part of the asset's key."""
        return self.name or self.transform.__name__

    @property
    def consumer_name(self) -> str:
        """The consumer's name, unique in its queue."""
        return self.consumer or self.asset_name

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """Returns the spec of the asset. Override this to change it.

        Args:
            spec: the spec that `pgque_asset` makes. Keep its key, and the metadata that name queue
                and consumer.
        """
        return spec

    def execute(self, context: dg.AssetExecutionContext, batch: SparkBatch, **inputs: Any) -> Any:
        """Computes the result of a batch. Override this to change how.

        Args:
            context: of the run.
            batch: the claimed batch. It is acked after its output is stored.
            inputs: the resources and upstream assets among the transform's parameters.

        Returns:
            What a `@pgque_asset` may return: a DataFrame, an Output, a MaterializeResult or None.
        """
        offered = {"context": context, "batch": batch}
        named = {key: value for key, value in offered.items() if key in self._parameters}
        return self.transform(*self._data_frames(batch), **named, **inputs)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Builds the asset, its replay asset, check, sensor and IO manager."""
        options = self.arguments()
        resources = {}
        if self.sink is not None:
            options["io_manager_key"] = f"{self.asset_name}_io_manager"
            resources[options["io_manager_key"]] = self.sink.io_manager()
        asset = pgque_asset(**options)(self._compute_fn()).map_asset_specs(self.get_asset_spec)
        return dg.Definitions(
            assets=[asset, *self._replays(asset, options["io_manager_key"])],
            asset_checks=self._checks(asset),
            sensors=self._sensors(asset),
            resources=resources,
        )

    @property
    def _parameters(self) -> dict[str, inspect.Parameter]:
        return dict(inspect.signature(self.transform, eval_str=True).parameters)

    @property
    def _takes_data_frame(self) -> bool:
        return next(iter(self._parameters)) not in _OFFERED

    def _data_frames(self, batch: SparkBatch) -> list[Any]:
        if not self._takes_data_frame:
            return []
        if self.payload is None:
            return [batch.events()]
        return [batch.payload(**self.payload.arguments())]

    def _compute_fn(self) -> Callable[..., Any]:
        """Returns `execute` with the signature that @pgque_asset reads."""

        def compute_fn(context: dg.AssetExecutionContext, batch: SparkBatch, **inputs: Any) -> Any:
            return self.execute(context, batch, **inputs)

        signature = inspect.signature(self.transform, eval_str=True)
        parameters = list(signature.parameters.values())[1 if self._takes_data_frame else 0 :]
        inputs = [each for each in parameters if each.name not in _OFFERED]
        offered = [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in _OFFERED
        ]
        compute_fn.__name__ = self.asset_name
        compute_fn.__doc__ = self.transform.__doc__
        compute_fn.__signature__ = inspect.Signature([*offered, *inputs])  # type: ignore[attr-defined]
        compute_fn.__annotations__ = {
            each.name: each.annotation for each in inputs if each.annotation is not each.empty
        }
        if signature.return_annotation is not signature.empty:
            compute_fn.__annotations__["return"] = signature.return_annotation
        return compute_fn

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
        return [decorate(self._compute_fn())]

    def _sensors(self, asset: dg.AssetsDefinition) -> list[dg.SensorDefinition]:
        if self.sensor is None:
            return []
        options = self.sensor.arguments()
        options["name"] = self.sensor.name or f"{self.asset_name}_sensor"
        return [build_pgque_sensor([asset], **options)]

    def _checks(self, asset: dg.AssetsDefinition) -> list[dg.AssetChecksDefinition]:
        if self.consumer_lag_checks is None:
            return []
        return build_consumer_lag_checks([asset], **self.consumer_lag_checks.arguments())
