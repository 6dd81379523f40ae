"""Makes a step that Dagster can run of a function that takes a batch."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import dagster as dg

from ..resource import PgqueResource
from ..spark import SparkBatch
from ..step_errors import log_error_line
from .outputs import AssetRecord, StepResult

Body = Callable[..., Any]


def is_annotated_none(body: Body) -> bool:
    """Whether a function's annotation says that it returns None."""
    return inspect.signature(body).return_annotation in (None, "None")


def is_annotated_result(body: Body) -> bool:
    """Whether a function's annotation says that it returns a MaterializeResult without a value."""
    returned = inspect.signature(body).return_annotation
    if isinstance(returned, str):
        return returned.rpartition(".")[2] == "MaterializeResult"
    return returned is dg.MaterializeResult


def step_of(
    body: Body,
    work: Callable[..., Iterator[StepResult | AssetRecord]],
    required: Iterable[str],
    config: type[dg.Config] | None = None,
) -> Body:
    """Returns a function with the body's parameters, less the batch, plus what the work needs.

    Args:
        body: takes a `SparkBatch` named `batch`, and what it likes besides.
        work: is passed context, pgque, pyspark and a function that calls the body with a batch; and
            the config, if there is one.
        required: keys of further resources.
        config: the type of the step's config.

    Raises:
        DagsterInvalidDefinitionError: if the body takes no batch, or a config of its own, or is
            `async`.
    """
    if inspect.iscoroutinefunction(body) or inspect.isasyncgenfunction(body):
        raise dg.DagsterInvalidDefinitionError(
            f"{body.__name__} is async: nothing would wait for it before the ack. Make it a plain "
            "function"
        )
    wanted = inspect.signature(body).parameters
    if "batch" not in wanted:
        raise dg.DagsterInvalidDefinitionError(
            f"{body.__name__} has no parameter 'batch': it is passed the SparkBatch"
        )
    if config is not None and "config" in wanted:
        raise dg.DagsterInvalidDefinitionError(
            f"{body.__name__} has a parameter 'config', where the step has a config of its own"
        )
    # Dagster takes resources by parameter or by key, not both: those by key become parameters.
    added = sorted(set(required) - set(wanted) - {"pgque", "pyspark"})
    own = {} if config is None else {"config": config}

    def run(
        context: dg.AssetExecutionContext, pgque: PgqueResource, pyspark: Any, **others: Any
    ) -> Any:
        def call(batch: SparkBatch) -> Any:
            offered = {"context": context, "pgque": pgque, "pyspark": pyspark, "batch": batch}
            mine = {key: value for key, value in others.items() if key in wanted}
            return body(**mine, **{key: offered[key] for key in offered if key in wanted})

        with log_error_line(context.log):
            yield from work(context, pgque, pyspark, call, **{key: others[key] for key in own})

    parameters = {
        "context": dg.AssetExecutionContext,
        "pgque": PgqueResource,
        "pyspark": dg.ResourceParam[Any],  # type: ignore[misc]
        **dict.fromkeys(added, dg.ResourceParam[Any]),  # type: ignore[misc]
        **own,
    }
    inputs = [key for key in wanted if key not in {*parameters, "batch"}]
    run.__name__ = body.__name__
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            *(
                inspect.Parameter(key, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
                for key, kind in parameters.items()
            ),
            *(wanted[key] for key in inputs),
        ]
    )
    annotations = body.__annotations__
    run.__annotations__ = {
        **{key: annotations[key] for key in inputs if key in annotations},
        **parameters,
    }
    return run
