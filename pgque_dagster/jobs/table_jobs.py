"""The job that maintains tables of files."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from ..client import Client
from ..project.database import DEFAULT, Database
from ..project.resource import PgqueResource
from ..project.step_errors import log_error_line

if TYPE_CHECKING:
    from ..spark import ParquetSink
    from ..spark.sinks.tables import TableSink

    Tables = Sequence[TableSink | ParquetSink]


class MaintenanceConfig(dg.Config):
    """How to maintain the tables."""

    retention_days: float = Field(
        default=7.0,
        ge=1,
        description="How old a file must be to be deleted: longer than any attempt at a batch and "
        "any reader takes.",
    )


def build_table_maintenance_job(
    tables: "Tables | Callable[[Client], Sequence[TableSink]]",
    *,
    database: str = DEFAULT,
    name: str | None = None,
) -> dg.JobDefinition:
    """Builds a job that maintains tables. Put it on a schedule, such as daily.

    It unites small files, forgets snapshots of Iceberg that are older than the retention, and
    deletes files that nobody needs any more, such as those of killed attempts. In directories of
    Parquet, it unites the files of finished batches, by Spark. Batches can be stored meanwhile. The
    job needs the resource of the database, and for Parquet also `pyspark`.

    Args:
        tables: the tables, such as `[DeltaSink("s3://bucket/tables/lines")]`, or a function that
            returns them in the run, given a client of the queue's database.
        database: the key of the PgqueResource whose database the tables' batches are from.
        name: the name of the job; by default `pgque_maintain_tables`, with the database in front.
    """
    # Late, so that a code location without such a job loads without Arrow.
    from ..spark.cluster.session import open_session

    name = name or Database(database).named("pgque_maintain_tables")
    by_spark = not callable(tables) and any(table.maintained_by_spark for table in tables)

    @dg.op(
        name=f"{name}_op",
        description="Unites small files and deletes those not needed.",
        required_resource_keys={database, "pyspark"} if by_spark else {database},
    )
    def maintain(context: dg.OpExecutionContext, config: MaintenanceConfig) -> None:
        pgque: PgqueResource = getattr(context.resources, database)
        if by_spark:
            open_session(context.resources.pyspark)
        with log_error_line(context.log):
            with pgque.client() as client:
                sinks = tables(client) if callable(tables) else tables
            for sink in sinks:
                age = timedelta(days=config.retention_days)
                done = sink.maintain(pgque.database_url(), retention=age)
                context.log.info(
                    f"{sink.name}: {done.replaced} small files became {done.by}, and "
                    f"{len(done.deleted)} files were deleted"
                )

    graph = dg.GraphDefinition(name, node_defs=[maintain], description="Maintains tables of files.")
    return graph.to_job(executor_def=dg.in_process_executor)
