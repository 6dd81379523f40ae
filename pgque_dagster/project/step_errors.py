"""Logs errors of a step in one line, before the traceback."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import dagster as dg

from ..client import PgqueError


@contextmanager
def log_error_line(log: dg.DagsterLogManager) -> Iterator[None]:
    """Logs an error that a person can correct in one line, before Dagster prints its traceback.

    The error is raised again, so that retry policies, failure hooks and alerts see it.

    Args:
        log: of the step.
    """
    try:
        yield
    except (PgqueError, dg.DagsterInvalidDefinitionError) as error:
        log.error(" ".join(str(error).split()))
        raise


def logs_errors_first(
    handle_output: Callable[[Any, dg.OutputContext, Any], None],
) -> Callable[[Any, dg.OutputContext, Any], None]:
    """Wraps an IO manager's `handle_output` in `log_error_line`, since Dagster calls it itself."""

    @wraps(handle_output)
    def logging_handle_output(manager: Any, context: dg.OutputContext, obj: Any) -> None:
        with log_error_line(context.log):
            handle_output(manager, context, obj)

    return logging_handle_output
