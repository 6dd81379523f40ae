"""Reports in one line why a step failed, before the traceback, and records temporary errors."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import dagster as dg

from ..client import PgqueError
from ..client.errors import passes, told
from .keys import PASSES

# The prefix for an error that this package did not raise.
_LONGEST_LINE = 500


@contextmanager
def log_error_line(log: dg.DagsterLogManager) -> Iterator[None]:
    """Logs an error in one line, before Dagster prints its traceback.

    The error is raised again, so that retry policies, failure hooks and alerts see it.
    """
    try:
        yield
    except (PgqueError, dg.DagsterInvalidDefinitionError) as error:
        log.error(_line(error))
        raise
    except (dg.DagsterError, dg.Failure, dg.RetryRequested):
        raise
    except Exception as error:
        log.error(_line(error))
        raise


@contextmanager
def failing_by_its_reason(log: dg.DagsterLogManager) -> Iterator[None]:
    """Logs an error in one line, and raises a failure that begins with this line.

    On the page of a run, Dagster shows a failure unchanged, and any other error behind one of its
    own. Not for an IO manager: Dagster keeps a failure and its frames until the step has ended, and
    so would not close the generator that waits for the output.

    Raises:
        Failure: its cause is the error. Dagster's own errors and failures are raised unchanged.
    """
    try:
        with log_error_line(log):
            yield
    except (dg.DagsterError, dg.Failure, dg.RetryRequested):
        raise
    except Exception as error:
        raise dg.Failure(_line(error)) from error


def _line(error: Exception) -> str:
    if isinstance(error, (PgqueError, dg.DagsterInvalidDefinitionError)):
        return " ".join(str(error).split())
    return told(error).partition("\n")[0][:_LONGEST_LINE]


@contextmanager
def noting_what_passes(instance: dg.DagsterInstance, run_id: str) -> Iterator[None]:
    """Tags a run that fails with a temporary error, so that it does not count as an attempt."""
    try:
        yield
    except Exception as error:
        line = " ".join(told(error).split())[:_LONGEST_LINE]
        noted = f"{run_id} {line}" if passes(error) else ""
        # Without the tag, the run counts as an attempt.
        with suppress(Exception):
            run = instance.get_run_by_id(run_id)
            # With a RetryPolicy, the step is executed again, and its last error decides.
            if run is not None and noted != run.tags.get(PASSES, ""):
                instance.add_run_tags(run_id, {PASSES: noted})
        raise
