"""Logs errors of a step in one line, before the traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from ..client import PgqueError
from ..client.errors import told

# Of an error that this package did not raise.
_LONGEST_LINE = 500


@contextmanager
def log_error_line(log: dg.DagsterLogManager) -> Iterator[None]:
    """Logs an error in one line, before Dagster prints its traceback.

    The error is raised again, so that retry policies, failure hooks and alerts see it.

    Args:
        log: of the step.
    """
    try:
        yield
    except (PgqueError, dg.DagsterInvalidDefinitionError) as error:
        log.error(" ".join(str(error).split()))
        raise
    except (dg.DagsterError, dg.Failure, dg.RetryRequested):
        raise
    except Exception as error:
        first_line = told(error).partition("\n")[0]
        log.error(first_line[:_LONGEST_LINE])
        raise
