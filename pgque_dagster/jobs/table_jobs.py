"""The job that maintains tables of files."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from ..project.resource import PgqueResource

if TYPE_CHECKING:
    from ..spark import DeltaSink, IcebergSink, ParquetSink


class MaintenanceConfig(dg.Config):
    """How to maintain the tables."""

    target_file_mb: int = Field(
        default=128, ge=1, description="The size of united files of Delta tables, in MiB."
    )
    retention_days: float = Field(
        default=7.0,
        ge=1,
        description="How old a file must be to be deleted: longer than any attempt at a batch and "
        "any reader takes.",
    )
    dry_run: bool = Field(default=False, description="Whether to only count files to delete.")


def build_table_maintenance_job(
    tables: "Sequence[DeltaSink | IcebergSink | ParquetSink]",
    *,
    name: str = "pgque_maintain_tables",
) -> dg.JobDefinition:
    """Builds a job that maintains tables. Put it on a schedule, such as daily.

    In Delta tables, it unites small files and then deletes files that the table does not refer to
    any more, such as those of killed attempts. In Iceberg tables, it deletes data files that no
    snapshot refers to, if their attempts at a batch cannot publish them any more, and keeps all
    snapshots. In directories of Parquet, it unites the files of finished batches, by Spark.
    Batches can be stored meanwhile. The job needs the resource `pgque`, and for Parquet `pyspark`.

    Args:
        tables: the tables, such as `[DeltaSink("s3://bucket/tables/lines")]`.
        name: the name of the job.
    """
    # Late, so that a code location without such a job loads without Arrow.
    from ..spark import DeltaSink, ParquetSink
    from ..spark.cluster.session import open_session

    needed = {"pgque"}
    if any(isinstance(sink, ParquetSink) for sink in tables):
        needed.add("pyspark")

    @dg.op(
        name=f"{name}_op",
        description="Unites small files and deletes those not needed.",
        required_resource_keys=needed,
    )
    def maintain(context: dg.OpExecutionContext, config: MaintenanceConfig) -> None:
        pgque: PgqueResource = context.resources.pgque
        retention = timedelta(days=config.retention_days)
        for sink in tables:
            if isinstance(sink, ParquetSink):
                if not config.dry_run:
                    spark = open_session(context.resources.pyspark)
                    batches = sink.compact(spark, pgque.database_url())
                    context.log.info(f"{sink.location}: {batches} batches were united")
                continue
            if isinstance(sink, DeltaSink):
                table = sink.location
                if not config.dry_run:
                    united = sink.optimize(target_file_bytes=config.target_file_mb * 2**20)
                    context.log.info(
                        f"{table}: {united['numFilesRemoved']} files became "
                        f"{united['numFilesAdded']}"
                    )
                deleted = sink.vacuum(retention=retention, dry_run=config.dry_run)
            else:
                table, url = sink.table, pgque.database_url()
                deleted = sink.sweep(url, older_than=retention, dry_run=config.dry_run)
            were = "would be" if config.dry_run else "were"
            context.log.info(f"{table}: {len(deleted)} files {were} deleted")

    @dg.job(
        name=name,
        description="Maintains tables of files.",
        executor_def=dg.in_process_executor,
    )
    def job() -> None:
        maintain()

    return job
