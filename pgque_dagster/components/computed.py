"""What components for assets share: the transform, how its input is read, and its sink."""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

import dagster as dg
from pydantic import Field, model_validator

from ..assets.decorators import pgque_asset
from ..project.database import Database
from ..spark.batch import SparkBatch
from ..spark.reading.arrow import EVENT_COLUMNS
from .options import CONDITION, Options, given_as, mirror, one_of, option, template
from .sinks import Sink
from .transforms import Transform, function_option

# Parameters that a transform may have, like the function of a @pgque_asset.
_OFFERED = ("context", "batch")


def _event_columns(description: str) -> dg.Resolver:
    columns: Any = list[Literal[*EVENT_COLUMNS]]  # type: ignore[valid-type]
    return given_as(columns, description, ["ev_time"])


def _share(description: str) -> dg.Resolver:
    # Strict, because otherwise true would be read as 1.
    return given_as(Annotated[float, Field(ge=0, le=1, strict=True)], description, 0.2)


class Payload(
    mirror(
        SparkBatch.payload,
        leave_out=["self", "schema"],
        keep=_event_columns,
        max_malformed=_share,
    )
):
    """Options of `SparkBatch.payload`, which a run calls."""

    # The base class of Pydantic has a method `schema`.
    schema_: Annotated[
        str,
        option("Fields to read from the JSON, as DDL.", "id bigint not null, total double"),
    ] = Field(alias="schema")


class OfDagster(Options):
    """Options of `@dg.asset`, which `pgque_asset` passes on."""

    key_prefix: Annotated[list[str] | None, option("Prefix of the asset's key.")] = None
    deps: Annotated[
        list[dg.ResolvedAssetKey], option("Upstream assets besides the queue.", ["rates"])
    ] = Field(default=[])
    description: Annotated[
        str | None, option("The asset's description; by default the function's docstring.")
    ] = None
    kinds: Annotated[
        set[str] | None,
        given_as(
            list[str] | None,
            "Shown with the asset; by default pyspark.",
            resolve=lambda context, value: None if value is None else set(value),
        ),
    ] = None
    group_name: Annotated[str | None, option("The asset's group.")] = None
    owners: Annotated[list[str] | None, option("Of the asset.")] = None
    tags: Annotated[dict[str, str] | None, option("Of the asset.")] = None
    metadata: Annotated[dict[str, Any] | None, option("Of the asset.")] = None
    code_version: Annotated[str | None, option("Of the function.")] = None
    automation_condition: Annotated[
        dg.AutomationCondition[dg.AssetKey] | None, template("Of the asset.", CONDITION)
    ] = None
    freshness_policy: Annotated[
        dg.FreshnessPolicy | None,
        template(
            "Of the asset.",
            "{{ dg.FreshnessPolicy.cron('0 9 * * *', datetime.timedelta(hours=1)) }}",
        ),
    ] = None
    op_tags: Annotated[dict[str, Any] | None, option("Of the step.")] = None
    pool: Annotated[
        str | None, option("A pool that limits how many steps run at the same time.")
    ] = None


class Computed(Options):
    """An asset that a function computes from a batch or a window, and that a sink stores."""

    if TYPE_CHECKING:
        # Options of the decorator, which the component mirrors.
        queue: str
        database: str
        name: str | None
        io_manager_key: str | None

    transform: Annotated[
        Transform,
        function_option(
            "the function that computes the asset",
            *(".transform.revenue", "my_project.transforms.revenue"),
        ),
    ]
    payload: Annotated[
        Payload | None, option("How to read payloads; if left out, the transform gets the events.")
    ] = None
    sink: Annotated[
        Sink | None,
        one_of(
            "Where to store the result; if left out, by io_manager_key.",
            *get_args(Sink),
            or_null=True,
        ),
    ] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self._parameters:
            raise ValueError("the transform has no parameter: add one, to get the DataFrame")
        if inspect.iscoroutinefunction(self.transform):
            raise ValueError(
                "the transform is async: make it a plain function, and use asyncio.run() in it for "
                "asynchronous parts"
            )
        for index, (name, parameter) in enumerate(self._parameters.items()):
            how = "place" if index == 0 and self._takes_data_frame else "name"
            other = parameter.POSITIONAL_ONLY if how == "place" else parameter.KEYWORD_ONLY
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, other):
                raise ValueError(
                    f"`{name}` of the transform cannot be passed by {how}: remove / or *"
                )
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

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """Returns the spec of the asset. Override this to change it.

        Args:
            spec: the spec that the decorator makes. Keep its key, and the metadata with the queue
                and the consumer.
        """
        return spec

    def execute(self, context: dg.AssetExecutionContext, batch: SparkBatch, **inputs: Any) -> Any:
        """Computes the result of a batch. Override this to change how.

        Args:
            context: the context of the run.
            batch: the batch or the window. A batch is acked after its output is stored.
            inputs: the resources and upstream assets among the transform's parameters.

        Returns:
            What a `@pgque_asset` may return: a DataFrame, an Output, a MaterializeResult or None.
        """
        offered = {"context": context, "batch": batch}
        named = {key: value for key, value in offered.items() if key in self._parameters}
        return self.transform(*self._data_frames(batch), **named, **inputs)

    def asset_and_resources(self) -> tuple[dg.AssetsDefinition, dict[str, Any]]:
        """Returns the asset, and the IO manager of its sink as a resource."""
        options, resources = self.arguments(), {}
        if self.sink is not None:
            key = Database(self.database).named(f"{self.asset_name}_io_manager")
            options["io_manager_key"] = key
            resources[key] = self.sink.io_manager(self.database)
        asset = pgque_asset(**options)(self.compute_fn())
        return asset.map_asset_specs(self.get_asset_spec), resources

    def compute_fn(self) -> Callable[..., Any]:
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
