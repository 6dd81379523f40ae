"""The job that maintains tables of files."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from ..client import Client, InvalidArgument
from ..project.database import DEFAULT, Database
from ..project.resource import PgqueResource
from ..project.step_errors import log_error_line

if TYPE_CHECKING:
    from ..spark.sinks.tables import TableSink


class MaintenanceConfig(dg.Config):
    """How to maintain the tables."""

    retention_days: float = Field(
        default=7.0,
        ge=1,
        description="How old a file must be to be deleted: longer than any attempt at a batch and "
        "any reader takes.",
    )


def build_table_maintenance_job(
    tables: "Sequence[TableSink] | Callable[[Client], Mapping[dg.AssetKey, TableSink]]",
    *,
    database: str = DEFAULT,
    name: str | None = None,
) -> dg.JobDefinition:
    """Builds a job that maintains tables. Put it on a schedule, such as daily.

    It compacts small files, expires snapshots of Iceberg that are older than the retention, and
    deletes files that are no longer needed, such as those of killed attempts. Batches can be stored
    at the same time. The job needs the resources of the database and `pyspark`.

    Args:
        tables: the tables, such as `[DeltaSink("s3://bucket/tables/lines")]`, or a function that
            returns them by their assets in the run, given a client of the queue's database. Then an
            observation of the asset has how many files and rows a table has.
        database: the key of the PgqueResource whose database the tables' batches are from.
        name: the name of the job; by default `pgque_maintain_tables`, with the database in front.

    Raises:
        InvalidArgument: if one of the tables is not of Delta or Iceberg.
    """
    name = name or Database(database).named("pgque_maintain_tables")
    for table in () if callable(tables) else tables:
        if not hasattr(table, "maintain"):
            raise InvalidArgument(
                f"{type(table).__name__} needs no maintenance",
                "Leave it out. For many small batches, use DeltaSink or IcebergSink.",
            )

    @dg.op(
        name=f"{name}_op",
        description="Compacts small files and deletes unused ones.",
        required_resource_keys={database, "pyspark"},
    )
    def maintain(context: dg.OpExecutionContext, config: MaintenanceConfig) -> None:
        pgque: PgqueResource = getattr(context.resources, database)
        from ..spark.cluster.session import open_session

        with log_error_line(context.log):
            with pgque.client() as client:
                found = tables(client).items() if callable(tables) else [(None, x) for x in tables]
            age, failed = timedelta(days=config.retention_days), list[str]()
            for key, sink in found:
                try:
                    spark = open_session(context.resources.pyspark)
                    done = sink.maintain(spark, pgque.database_url(), retention=age)
                except Exception as error:
                    # One table does not keep the others from being maintained.
                    context.log.error(f"{sink.name} is not maintained: {error}")
                    failed.append(sink.name)
                    continue
                context.log.info(
                    f"{sink.name}: {done.replaced} small files became {done.by}, and "
                    f"{len(done.deleted)} files were deleted. {done.deleted_rows} of "
                    f"{done.rows} rows in {done.files} files are deleted"
                )
                counts = {"files": done.files, "rows": done.rows, "deleted_rows": done.deleted_rows}
                if key is not None:
                    named = {f"pgque/stored_{name}": count for name, count in counts.items()}
                    context.log_event(dg.AssetObservation(key, metadata=named))
            if failed:
                raise dg.Failure(
                    f"{len(failed)} of {len(found)} tables are not maintained: {', '.join(failed)}."
                    " The log above says why. If files of a replica are gone, run its repair job.",
                    allow_retries=False,
                )

    graph = dg.GraphDefinition(name, node_defs=[maintain], description="Maintains tables of files.")
    return graph.to_job(executor_def=dg.in_process_executor)
