"""Lets runs of batches execute their step in the run's own process."""

from typing import Any

import dagster as dg

_IN_PROCESS: dict[str, Any] = {"execution": {"config": {"in_process": {}}}}


def repository_of(
    context: dg.SensorEvaluationContext | dg.ScheduleEvaluationContext,
) -> dg.RepositoryDefinition | None:
    """Returns the definitions of the code location; None in a test without any."""
    try:
        return context.repository_def
    except dg.DagsterInvariantViolationError:
        # The context of a schedule raises.
        return None


def without_step_process(
    repository: dg.RepositoryDefinition | None, job_name: str | None
) -> dict[str, Any] | None:
    """Returns the configuration of runs that lets the default executor use the run's process.

    Such a run has one step, for which the default executor would start another process, with
    imports and a Spark session of its own. An executor that the project chose is left alone.

    Args:
        repository: of the code location; None in a test.
        job_name: of the job that the runs are of.
    """
    if repository is None or job_name is None:
        return None
    job = repository.get_job(job_name)
    return _IN_PROCESS if job.executor_def is dg.multi_or_in_process_executor else None
