"""Wraps a function that takes a batch into a compute function that Dagster can run."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, get_args, get_origin

import dagster as dg
from pyspark.sql import DataFrame

from ..project.resource import PgqueResource
from ..project.step_errors import log_error_line
from .event_log import refuse_unrecorded
from .outputs import AssetRecord, StepResult

if TYPE_CHECKING:
    from ..spark import SparkBatch

ComputeFunction = Callable[..., Any]


def is_annotated_none(compute_fn: ComputeFunction) -> bool:
    """Whether the function is annotated with `-> None`."""
    return inspect.signature(compute_fn).return_annotation in (None, "None")


def is_annotated_result(compute_fn: ComputeFunction) -> bool:
    """Whether the function is annotated with `-> MaterializeResult`, without a value type."""
    returned = inspect.signature(compute_fn).return_annotation
    if isinstance(returned, str):
        return returned.rpartition(".")[2] == "MaterializeResult"
    return returned is dg.MaterializeResult


def returns_frames(compute_fn: ComputeFunction) -> bool:
    """Whether the function is annotated to return DataFrames only, for IO managers to store."""
    try:
        returned = inspect.signature(compute_fn, eval_str=True).return_annotation
    except NameError:
        # A name that only type checkers import.
        returned = inspect.signature(compute_fn).return_annotation
    return _is_frame(returned)


def _is_frame(returned: Any) -> bool:
    if isinstance(returned, str):
        return returned.rpartition(".")[2] == "DataFrame"
    if get_origin(returned) in (tuple, dg.Output):
        parts = [part for part in get_args(returned) if part is not Ellipsis]
        return bool(parts) and all(map(_is_frame, parts))
    return isinstance(returned, type) and issubclass(returned, DataFrame)


def make_step(
    compute_fn: ComputeFunction,
    work: Callable[..., Iterator[StepResult | AssetRecord]],
    required: Iterable[str],
    config: type[dg.Config] | None = None,
) -> ComputeFunction:
    """Returns the function that Dagster runs as the step.

    Its parameters are those of `compute_fn` without `batch`, plus those that `work` needs.

    Args:
        compute_fn: takes a `SparkBatch` named `batch`, and optionally `context`, resources and
            upstream assets.
        work: runs the step. It gets context, pgque, pyspark, a function that calls `compute_fn`
            with a batch, and the config, if the step has one.
        required: keys of further resources that the step needs.
        config: the type of the step's config.

    Raises:
        DagsterInvalidDefinitionError: if `compute_fn` takes no batch, takes `config` although the
            step has its own, or is `async`.
    """
    if inspect.iscoroutinefunction(compute_fn) or inspect.isasyncgenfunction(compute_fn):
        raise dg.DagsterInvalidDefinitionError(
            f"{compute_fn.__name__} is async: nothing would wait for it before the ack. Make it a "
            "plain function, and call asyncio.run() in it for what is async"
        )
    wanted = inspect.signature(compute_fn).parameters
    if "batch" not in wanted:
        raise dg.DagsterInvalidDefinitionError(
            f"{compute_fn.__name__} has no parameter 'batch': add it, to get the SparkBatch"
        )
    if config is not None and "config" in wanted:
        raise dg.DagsterInvalidDefinitionError(
            f"{compute_fn.__name__} has a parameter 'config', but the step already has a config: "
            "rename the parameter or remove it"
        )
    # Dagster takes resources by parameter or by key, not both. So keys become parameters.
    added = sorted(set(required) - set(wanted) - {"pgque", "pyspark"})
    own = {} if config is None else {"config": config}

    def run(
        context: dg.AssetExecutionContext, pgque: PgqueResource, pyspark: Any, **others: Any
    ) -> Any:
        def call(batch: "SparkBatch") -> Any:
            offered = {"context": context, "pgque": pgque, "pyspark": pyspark, "batch": batch}
            mine = {key: value for key, value in others.items() if key in wanted}
            return compute_fn(**mine, **{key: offered[key] for key in offered if key in wanted})

        with log_error_line(context.log):
            refuse_unrecorded(context)
            yield from work(context, pgque, pyspark, call, **{key: others[key] for key in own})

    parameters = {
        "context": dg.AssetExecutionContext,
        "pgque": PgqueResource,
        "pyspark": dg.ResourceParam[Any],  # type: ignore[misc]
        **dict.fromkeys(added, dg.ResourceParam[Any]),  # type: ignore[misc]
        **own,
    }
    inputs = [key for key in wanted if key not in {*parameters, "batch"}]
    run.__name__ = compute_fn.__name__
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            *(
                inspect.Parameter(key, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
                for key, kind in parameters.items()
            ),
            *(wanted[key] for key in inputs),
        ]
    )
    annotations = compute_fn.__annotations__
    run.__annotations__ = {
        **{key: annotations[key] for key in inputs if key in annotations},
        **parameters,
    }
    return run
