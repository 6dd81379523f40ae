"""Jobs that maintain Delta and Iceberg tables."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from ..client import InvalidArgument
from ..project.resource import PgqueResource

if TYPE_CHECKING:
    from ..spark import IcebergSink


class DeltaMaintenanceConfig(dg.Config):
    """How to maintain the tables."""

    target_file_mb: int = Field(default=128, ge=1, description="The size of united files, in MiB.")
    retention_days: float = Field(
        default=7.0,
        ge=1,
        description="How old a file must be to be deleted: longer than any attempt at a batch and "
        "any reader takes.",
    )
    dry_run: bool = Field(default=False, description="Whether to only list files to delete.")


def build_delta_maintenance_job(
    locations: Sequence[str],
    *,
    name: str = "pgque_maintain_delta_tables",
    storage_options: Mapping[str, str] | None = None,
) -> dg.JobDefinition:
    """Builds a job that maintains Delta tables. Put it on a schedule, such as daily.

    It unites small files, and then deletes files that the table does not refer to any more, such as
    those of killed attempts. Batches can be stored meanwhile.

    Args:
        locations: the directories or URLs of the tables.
        name: the name of the job.
        storage_options: as for `DeltaSink`.

    Raises:
        InvalidArgument: if `locations` is one text, or no table can be there.
    """
    # Late, so that a code location loads without Arrow.
    from ..spark import DeltaSink

    if isinstance(locations, str):
        raise InvalidArgument(f"{locations!r} is no list of locations", f"Pass [{locations!r}].")
    sinks = [DeltaSink(location, storage_options=storage_options) for location in locations]

    @dg.op(name=f"{name}_op", description="Unites small files and deletes those not needed.")
    def maintain(context: dg.OpExecutionContext, config: DeltaMaintenanceConfig) -> None:
        for location, sink in zip(locations, sinks, strict=True):
            united = {"numFilesAdded": 0, "numFilesRemoved": 0}
            if not config.dry_run:
                united = sink.optimize(target_file_bytes=config.target_file_mb * 2**20)
            retention = timedelta(days=config.retention_days)
            deleted = sink.vacuum(retention=retention, dry_run=config.dry_run)
            context.log.info(
                f"{location}: {united['numFilesRemoved']} files became {united['numFilesAdded']}, "
                f"{len(deleted)} files {'would be' if config.dry_run else 'were'} deleted"
            )

    @dg.job(
        name=name,
        description="Maintains Delta tables.",
        executor_def=dg.in_process_executor,
    )
    def job() -> None:
        maintain()

    return job


class IcebergMaintenanceConfig(dg.Config):
    """How to maintain the tables."""

    retention_days: float = Field(
        default=7.0,
        ge=1,
        description="How old a file must be to be deleted: longer than any attempt at a batch "
        "takes.",
    )
    dry_run: bool = Field(default=False, description="Whether to only list files to delete.")


def build_iceberg_maintenance_job(
    sinks: "Sequence[IcebergSink]", *, name: str = "pgque_maintain_iceberg_tables"
) -> dg.JobDefinition:
    """Builds a job that maintains Iceberg tables. Put it on a schedule, such as daily.

    It deletes data files that no snapshot refers to, if their attempts at a batch cannot publish
    them any more. It keeps all snapshots. Batches can be stored meanwhile. The job needs the
    resource `pgque`.

    Args:
        sinks: the tables, such as `[IcebergSink("sales.revenue", warehouse="s3://bucket/lake")]`.
        name: the name of the job.
    """

    @dg.op(name=f"{name}_op", description="Deletes files of attempts that ended.")
    def maintain(
        context: dg.OpExecutionContext, config: IcebergMaintenanceConfig, pgque: PgqueResource
    ) -> None:
        retention = timedelta(days=config.retention_days)
        for sink in sinks:
            deleted = sink.sweep(pgque.database_url(), older_than=retention, dry_run=config.dry_run)
            context.log.info(
                f"{sink.table}: {len(deleted)} files "
                f"{'would be' if config.dry_run else 'were'} deleted"
            )

    @dg.job(
        name=name,
        description="Maintains Iceberg tables.",
        executor_def=dg.in_process_executor,
    )
    def job() -> None:
        maintain()

    return job
