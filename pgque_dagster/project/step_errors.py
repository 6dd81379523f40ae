"""Logs errors of a step in one line, before the traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

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
