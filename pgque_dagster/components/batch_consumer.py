"""`BatchConsumerComponent`: an asset that a function computes from the batches of a queue."""

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any, Self

import dagster as dg
from pydantic import Field, field_validator, model_validator

from ..assets.decorators import pgque_asset
from ..assets.replay import pgque_replay_asset
from ..checks import build_consumer_lag_checks
from ..client.errors import InvalidArgument
from ..sensors.batch_sensor import build_pgque_sensor
from ..sensors.run_requests import OnExhausted
from ..spark import SparkBatch
from ..spark.payload.malformed import DEFAULT_MAX_MALFORMED, OnMalformed, check_share
from .options import Options, condition, duration, option, share
from .scaffolding import BatchConsumerScaffolder
from .sinks import Sink, sink_option
from .transforms import Transform, load_function

# What a transform may ask for by name, as the body of a @pgque_asset may.
_OFFERED = ("context", "batch")


class Payload(Options):
    """Options of `SparkBatch.payload`."""

    schema_: Annotated[
        str, option("Fields to read from the JSON, as DDL.", "id bigint not null, total double")
    ] = Field(alias="schema")
    keep: Annotated[list[str], option("Event columns to put before them.", ["ev_time"])] = Field(
        default=[]
    )
    on_malformed: Annotated[
        OnMalformed,
        option("What becomes of events that do not fit: dead_letter, retry, fail or keep."),
    ] = "dead_letter"
    retry_after: Annotated[timedelta, duration("When they come again, for retry.")] = timedelta(
        minutes=1
    )
    max_malformed: Annotated[
        float,
        share("The share of a batch's events that may not fit; beyond it the run fails."),
    ] = DEFAULT_MAX_MALFORMED

    @field_validator("max_malformed", mode="before")
    @classmethod
    def _check_share(cls, value: Any) -> Any:
        try:
            check_share(value)
        except InvalidArgument as error:
            raise ValueError(str(error)) from error
        return value


class SensorOptions(Options):
    """Options of `build_pgque_sensor`."""

    name: Annotated[str | None, option("The sensor's; `<asset>_sensor`, if left out.")] = None
    min_events: Annotated[int, option("How many events are worth a run.")] = 1
    max_events: Annotated[int, option("How many events one run takes, about.")] = 1_000_000
    max_age: Annotated[timedelta, duration("How long events wait for others.")] = timedelta(
        seconds=60
    )
    max_attempts: Annotated[int, option("How many runs may claim a batch and fail.")] = 3
    backoff: Annotated[timedelta, duration("The wait after the first failure.")] = timedelta(
        seconds=10
    )
    on_exhausted: Annotated[
        OnExhausted,
        option("What becomes of a batch whose attempts all failed: hold or dead_letter."),
    ] = "hold"
    max_runs: Annotated[
        int | None, option("How many runs one evaluation requests at the most; null for no limit.")
    ] = None
    parallel_runs: Annotated[
        int, option("How many batches of the consumer may be worked on at a time.")
    ] = 1
    minimum_interval_seconds: Annotated[int, option("Between two evaluations.")] = 5
    default_status: Annotated[
        dg.DefaultSensorStatus, option("RUNNING, or STOPPED until it is switched on.")
    ] = dg.DefaultSensorStatus.RUNNING


class ConsumerLagChecks(Options):
    """Options of `build_consumer_lag_checks`."""

    max_lag: Annotated[timedelta, duration("How far the consumer may be behind.")]
    warn_lag: Annotated[timedelta | None, duration("Beyond this there is a warning.")] = None
    max_pending_events: Annotated[int | None, option("How many events may wait for it.")] = None
    severity: Annotated[dg.AssetCheckSeverity, option("Of a failure: ERROR or WARN.")] = (
        dg.AssetCheckSeverity.ERROR
    )
    automation_condition: Annotated[
        dg.AutomationCondition[dg.AssetCheckKey] | None,
        condition("When Dagster evaluates the check by itself."),
    ] = None


class ReplayOptions(Options):
    """Options of `pgque_replay_asset`; how it consumes and stores is as in the consumer's asset."""

    name: Annotated[str | None, option("The asset's; `<asset>_replay`, if left out.")] = None
    group_name: Annotated[str | None, option("The group to show it in.", "replays")] = None


class AssetOptions(Options):
    """Options of `pgque_asset`."""

    queue: Annotated[str, option("The queue's name.", "orders")]
    consumer: Annotated[str | None, option("The consumer's name; the asset's, if left out.")] = None
    lease_ttl: Annotated[timedelta, duration("How long a batch stays with a run that died.")] = (
        timedelta(minutes=1)
    )
    slices: Annotated[int, option("How many partitions a large batch is read in, at most.")] = 4
    max_batches: Annotated[int, option("How many batches one run takes, at most.")] = 1
    max_seconds: Annotated[
        float | None, option("No further batch is begun after this time of one run.", 300)
    ] = None
    timeout: Annotated[
        timedelta | None, duration("How long the work on one batch may take, before it fails.")
    ] = None
    returns_nothing: Annotated[
        bool, option("Whether the transform stores its results itself, as -> None says.")
    ] = False
    name: Annotated[str | None, option("The asset's name; the transform's, if left out.")] = None
    key_prefix: Annotated[
        list[str] | None, option("Put before the name in the asset's key.", ["bank"])
    ] = None
    deps: Annotated[
        list[dg.ResolvedAssetKey], option("Upstream assets besides the queue.", ["rates"])
    ] = Field(default=[])
    description: Annotated[
        str | None, option("Of the asset; the transform's docstring, if left out.")
    ] = None
    kinds: Annotated[list[str] | None, option("Shown with the asset; pyspark, if left out.")] = None
    group_name: Annotated[str | None, option("The group to show the asset in.", "sales")] = None
    owners: Annotated[list[str] | None, option("Of the asset.", ["team:sales"])] = None
    tags: Annotated[dict[str, str] | None, option("Of the asset.", {"tier": "gold"})] = None
    metadata: Annotated[dict[str, Any] | None, option("Of the asset.")] = None
    code_version: Annotated[str | None, option("Of the transform.", "3")] = None
    automation_condition: Annotated[
        dg.AutomationCondition[dg.AssetKey] | None,
        condition("When Dagster materializes the asset by itself, besides its sensor."),
    ] = None
    freshness_policy: Annotated[
        dg.FreshnessPolicy | None,
        dg.Resolver.default(model_field_type=str | None, description="Of the asset, as template."),
    ] = None
    check_specs: Annotated[
        list[dg.ResolvedAssetCheckSpec], option("Checks whose results the transform yields.")
    ] = Field(default=[])
    io_manager_key: Annotated[
        str | None, option("The IO manager to store with, where it is a resource of its own.")
    ] = None
    op_tags: Annotated[dict[str, Any] | None, option("Of the step that computes it.")] = None
    pool: Annotated[str | None, option("A pool that bounds how many of its steps run.")] = None

    def arguments(self) -> dict[str, Any]:
        """Returns the attributes as arguments of `pgque_asset`."""
        own = {name: getattr(self, name) for name in AssetOptions.model_fields}
        return {**own, "kinds": None if self.kinds is None else set(self.kinds)}


@dg.scaffold_with(BatchConsumerScaffolder)
class BatchConsumerComponent(AssetOptions, dg.Component):
    """A consumer of a queue: the asset that a function computes from its batches, and its sensor.

    The transform is given the payloads as DataFrame, or all of the events where there is no
    `payload`. It may name as further parameters what a `@pgque_asset` may: `context`, `batch`,
    resources, upstream assets. One whose first parameter is `batch` gets that instead of a
    DataFrame. What it returns is stored by the sink, and then the batch is acked.

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

        A subclass may change the asset and what is done with a batch:

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
            description="The function that computes the asset, by its import path; with a dot in "
            "front, from the folder of this file.",
            examples=[".transform.revenue", "my_project.transforms.revenue"],
        ),
    ]
    payload: Annotated[
        Payload | None, option("How to read the payloads; without it the transform gets events.")
    ] = None
    sink: Annotated[
        Sink | None, sink_option("Where to store; without it the IO manager is io_manager_key.")
    ] = None
    sensor: Annotated[
        SensorOptions | None, option("When batches get runs; null for no sensor.")
    ] = SensorOptions()
    replay: Annotated[
        ReplayOptions | None,
        option("An asset that computes past events once more; without it there is none."),
    ] = None
    consumer_lag_checks: Annotated[
        ConsumerLagChecks | None, option("How far behind is too far; without it there is no check.")
    ] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self._parameters:
            raise ValueError("the transform has no parameter: the first one gets the DataFrame")
        if self.payload is not None and not self._takes_data_frame:
            raise ValueError(
                f"the transform's first parameter is {next(iter(self._parameters))!r}, so it reads "
                "the payloads itself: leave out `payload`, or rename the parameter"
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
        """The consumer, unique in its queue."""
        return self.consumer or self.asset_name

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """Returns the asset to show; made to be overridden.

        Args:
            spec: the asset as `pgque_asset` makes it. Its key, and the metadata that name queue and
                consumer, have to stay.
        """
        return spec

    def execute(self, context: dg.AssetExecutionContext, batch: SparkBatch, **inputs: Any) -> Any:
        """Computes what is stored of a batch; made to be overridden.

        Args:
            context: of the run.
            batch: the claimed batch. It is acked when its output is stored.
            inputs: resources and upstream assets that the transform names.

        Returns:
            What a `@pgque_asset` may return: a DataFrame, an Output, a MaterializeResult or None.
        """
        offered = {"context": context, "batch": batch}
        named = {key: value for key, value in offered.items() if key in self._parameters}
        return self.transform(*self._data_frames(batch), **named, **inputs)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Makes the asset, that of its replays, its check, its sensor and its IO manager."""
        options = self.arguments()
        resources = {}
        if self.sink is not None:
            options["io_manager_key"] = f"{self.asset_name}_io_manager"
            resources[options["io_manager_key"]] = self.sink.io_manager()
        asset = pgque_asset(**options)(self._body()).map_asset_specs(self.get_asset_spec)
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

    def _body(self) -> Callable[..., Any]:
        """Returns `execute` with the signature that @pgque_asset reads."""

        def body(context: dg.AssetExecutionContext, batch: SparkBatch, **inputs: Any) -> Any:
            return self.execute(context, batch, **inputs)

        signature = inspect.signature(self.transform, eval_str=True)
        parameters = list(signature.parameters.values())[1 if self._takes_data_frame else 0 :]
        inputs = [each for each in parameters if each.name not in _OFFERED]
        offered = [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in _OFFERED
        ]
        body.__name__ = self.asset_name
        body.__doc__ = self.transform.__doc__
        body.__signature__ = inspect.Signature([*offered, *inputs])  # type: ignore[attr-defined]
        body.__annotations__ = {
            each.name: each.annotation for each in inputs if each.annotation is not each.empty
        }
        if signature.return_annotation is not signature.empty:
            body.__annotations__["return"] = signature.return_annotation
        return body

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
        return [decorate(self._body())]

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
