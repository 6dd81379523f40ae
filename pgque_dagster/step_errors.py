"""Errors of a step in one line: what a person reads before the traceback."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import dagster as dg

from .client import PgqueError


@contextmanager
def log_error_line(log: dg.DagsterLogManager) -> Iterator[None]:
    """Logs an error that says what to do in one line, before Dagster prints its traceback.

    The error itself goes on: retry policies, failure hooks and alerts see what was raised.

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
    """Makes an IO manager's `handle_output` log its errors so: Dagster calls it, not the step."""

    @wraps(handle_output)
    def telling(manager: Any, context: dg.OutputContext, obj: Any) -> None:
        with log_error_line(context.log):
            handle_output(manager, context, obj)

    return telling
