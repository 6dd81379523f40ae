"""Lets runs of batches execute their step in the run's own process."""

from collections.abc import Iterable
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
    requests: Iterable[dg.RunRequest],
    repository: dg.RepositoryDefinition | None,
    job_name: str | None,
) -> list[dg.RunRequest]:
    """Lets Dagster's default executor execute the runs' steps in the process of the run.

    Such a run has one step, for which the default executor would start another process, with
    imports and a Spark session of its own. An executor that the project chose is left alone.

    Args:
        requests: for one run each.
        repository: of the code location; None in a test, where nothing is changed.
        job_name: of the job that the requests are for.

    Returns:
        The requests, with configuration if the job has the default executor.
    """
    found = list(requests)
    if not found or repository is None or job_name is None:
        return found
    if repository.get_job(job_name).executor_def is not dg.multi_or_in_process_executor:
        return found
    return [
        dg.RunRequest(
            run_key=request.run_key,
            asset_selection=request.asset_selection,
            tags=request.tags,
            run_config=_IN_PROCESS,
        )
        for request in found
    ]
