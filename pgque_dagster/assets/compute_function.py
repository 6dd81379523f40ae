"""Wraps a function that takes a batch into a compute function that Dagster can run."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import dagster as dg

from .. import spark
from ..client import InvalidArgument
from ..project.database import Database
from ..project.resource import PgqueResource
from ..project.step_errors import failing_by_its_reason
from .consumption import ComputeFunction
from .outputs import StepResult


def make_step(
    compute_fn: ComputeFunction,
    databases: Sequence[Database],
    work: Callable[..., Iterator[StepResult]],
    required: Iterable[str],
) -> ComputeFunction:
    """Returns the function that Dagster runs as the step.

    Its parameters are those of `compute_fn` without `batch`, plus those that `work` needs.

    Args:
        compute_fn: takes a `SparkBatch` named `batch`, and optionally `context`, resources and
            upstream assets.
        databases: the databases whose resources the step needs.
        work: runs the step. It gets the context, the resources by database, pyspark, and a
            function that calls `compute_fn` with a batch.
        required: keys of additional resources that the step needs.

    Raises:
        DagsterInvalidDefinitionError: if `compute_fn` takes no batch, or is `async`.
    """
    if inspect.iscoroutinefunction(compute_fn) or inspect.isasyncgenfunction(compute_fn):
        raise dg.DagsterInvalidDefinitionError(
            f"{compute_fn.__name__} is async, but nothing would await it before the ack. Make it a "
            "plain function, and use asyncio.run() in it for asynchronous parts"
        )
    wanted = inspect.signature(compute_fn).parameters
    if "batch" not in wanted:
        raise dg.DagsterInvalidDefinitionError(
            f"{compute_fn.__name__} has no parameter 'batch': add it, to get the SparkBatch"
        )
    # Dagster takes resources by parameter or by key, but not both, so keys become parameters.
    names = [database.name for database in databases]
    added = sorted(set(required) - set(wanted) - {*names, "pyspark"})

    def run(context: dg.AssetExecutionContext, pyspark: Any, **others: Any) -> Any:
        resources = {name: others.pop(name) for name in names}

        def call(batch: "spark.SparkBatch") -> Any:
            offered = {"context": context, "pyspark": pyspark, "batch": batch, **resources}
            mine = {key: value for key, value in others.items() if key in wanted}
            return compute_fn(**mine, **{key: offered[key] for key in offered if key in wanted})

        with failing_by_its_reason(context.log):
            _refuse_unrecorded(context)
            yield from work(context, resources, pyspark, call)

    parameters = {
        "context": dg.AssetExecutionContext,
        **dict.fromkeys(names, PgqueResource),
        "pyspark": dg.ResourceParam[Any],  # type: ignore[misc]
        **dict.fromkeys(added, dg.ResourceParam[Any]),  # type: ignore[misc]
    }
    passed_on = [key for key in wanted if key not in {*parameters, "batch"}]
    run.__name__ = compute_fn.__name__
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            *(
                inspect.Parameter(key, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
                for key, kind in parameters.items()
            ),
            *(wanted[key] for key in passed_on),
        ]
    )
    annotations = compute_fn.__annotations__
    run.__annotations__ = {
        **{key: annotations[key] for key in passed_on if key in annotations},
        **parameters,
    }
    return run


def _refuse_unrecorded(context: dg.AssetExecutionContext) -> None:
    """Refuses a step whose process does not write the event log of its run.

    A batch is acked after its materialization is recorded. Under an executor, the step's process
    writes the event log itself, on any host, so the order is kept. A step launcher
    (`dg.StepLauncher`) gives the process its own instance, and the host records the events later,
    or never if it dies.

    Raises:
        InvalidArgument: if the instance of this process does not know the run.
    """
    if context.instance.get_run_by_id(context.run.run_id) is not None:
        return
    raise InvalidArgument(
        f"the instance of Dagster in this process does not know run {context.run.run_id}: a step "
        "launcher executes the step and reports its events after it ends, so the batch would be "
        "acked before its materialization is recorded",
        f"Remove the step launcher from the resources of {context.op_def.name}. To run the step on "
        "another host, use an executor (Docker, Kubernetes, Celery); to run only Spark elsewhere, "
        "use a session on the cluster.",
    )
