"""A code location of one file, whose runs know all its assets, as those of Dagster do."""

from pathlib import Path

import dagster as dg
from dagster._core.definitions.reconstruct import ReconstructableRepository


def execute(
    instance: dg.DagsterInstance,
    file: Path,
    text: str,
    job: str = "__ASSET_JOB",
    select: str | None = None,
) -> dg.JobExecutionResult:
    """Loads the definitions `defs`, whose executor is of this process, and executes a job."""
    file.write_text(text)
    location = ReconstructableRepository.for_file(str(file), "defs", str(file.parent))
    return dg.execute_job(
        location.get_reconstructable_job(job),
        instance,
        asset_selection=[dg.AssetKey(select)] if select else None,
    )
