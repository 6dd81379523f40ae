"""Wraps a function that takes a batch into a compute function that Dagster can run."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import dagster as dg

from ..project.resource import PgqueResource
from ..project.step_errors import log_error_line
from .consumption import ComputeFunction
from .event_log import refuse_unrecorded
from .outputs import AssetRecord, StepResult

if TYPE_CHECKING:
    from ..spark import SparkBatch


def make_step(
    compute_fn: ComputeFunction,
    work: Callable[..., Iterator[StepResult | AssetRecord]],
    required: Iterable[str],
) -> ComputeFunction:
    """Returns the function that Dagster runs as the step.

    Its parameters are those of `compute_fn` without `batch`, plus those that `work` needs.

    Args:
        compute_fn: takes a `SparkBatch` named `batch`, and optionally `context`, resources and
            upstream assets.
        work: runs the step. It gets context, pgque, pyspark, and a function that calls
            `compute_fn` with a batch.
        required: keys of further resources that the step needs.

    Raises:
        DagsterInvalidDefinitionError: if `compute_fn` takes no batch, or is `async`.
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
    # Dagster takes resources by parameter or by key, not both. So keys become parameters.
    added = sorted(set(required) - set(wanted) - {"pgque", "pyspark"})

    def run(
        context: dg.AssetExecutionContext, pgque: PgqueResource, pyspark: Any, **others: Any
    ) -> Any:
        def call(batch: "SparkBatch") -> Any:
            offered = {"context": context, "pgque": pgque, "pyspark": pyspark, "batch": batch}
            mine = {key: value for key, value in others.items() if key in wanted}
            return compute_fn(**mine, **{key: offered[key] for key in offered if key in wanted})

        with log_error_line(context.log):
            refuse_unrecorded(context)
            yield from work(context, pgque, pyspark, call)

    parameters = {
        "context": dg.AssetExecutionContext,
        "pgque": PgqueResource,
        "pyspark": dg.ResourceParam[Any],  # type: ignore[misc]
        **dict.fromkeys(added, dg.ResourceParam[Any]),  # type: ignore[misc]
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
