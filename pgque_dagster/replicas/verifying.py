"""The check that compares a replica with its table, and the job that repairs it."""

from typing import Any

import dagster as dg
from pydantic import Field

from ..assets.step import executors_address
from ..client import InvalidArgument
from ..client.replicas import postgres_verify
from ..client.replicas.apart import Apart
from ..client.replicas.postgres import PostgresReplicas
from ..client.replicas.verification import Verification
from ..client.source_tables import captured_tables, copy_again
from ..client.table_spec import TableSpec
from ..project.database import Database
from ..project.keys import identifier
from ..project.resource import PgqueResource, takes_resource
from ..project.step_errors import log_error_line
from ..spark.cluster.session import open_session
from .names import Target, replica_key

_CHECK = "equals_source"


class RepairTables(dg.Config):
    """What the job that repairs replicas is told."""

    tables: list[str] = Field(description="The tables, such as public.orders.")


def _repair_job_name(database: Database, name: str) -> str:
    return database.named(f"{identifier(name)}_repair")


def repair_job(database: Database, name: str) -> dg.JobDefinition:
    """Returns the job that has tables read again, and the rows written that differ.

    Args:
        database: the database of the tables.
        name: of the queue and the consumer.
    """

    @dg.op(name=f"{_repair_job_name(database, name)}_tables")
    @takes_resource(database)
    def request(context: dg.OpExecutionContext, config: RepairTables, pgque: PgqueResource) -> None:
        with log_error_line(context.log), pgque.client() as client:
            if not config.tables:
                raise InvalidArgument("no table is named", "Name one: tables: [public.orders].")
            captured = captured_tables(client, name)
            if unknown := sorted(set(config.tables) - set(captured)):
                raise InvalidArgument(
                    f"{', '.join(unknown)} is not captured into queue {name}",
                    f"Captured are: {', '.join(captured) or 'none'}.",
                )
            for table in config.tables:
                copy_again(client, name, name, table)

    @dg.job(
        name=_repair_job_name(database, name),
        description=f"Has the next batch of {name} read tables again, in one snapshot, and write "
        "the rows that differ by one commit for each table.",
    )
    def repair_tables() -> None:
        request()

    return repair_tables


class VerifiedTable(dg.Config):
    """What the check `equals_source` is told."""

    show_rows: bool = Field(
        default=False, description="Whether both rows of a difference stand in the metadata."
    )


def verify_check(
    database: Database, name: str, table: TableSpec, target: Target
) -> dg.AssetChecksDefinition:
    """Returns the check that a replica has the rows of its table at one tick.

    Args:
        database: the database of the table.
        name: of the queue and the consumer.
        table: the table.
        target: where the replica is.
    """

    @dg.asset_check(
        asset=replica_key(database, name, table),
        name=_CHECK,
        description=f"The replica has the rows of {table.source}, compared at one tick.",
    )
    @takes_resource(database)
    def equals_source(
        context: dg.AssetCheckExecutionContext,
        config: VerifiedTable,
        pgque: PgqueResource,
        pyspark: dg.ResourceParam[Any],
    ) -> dg.AssetCheckResult:
        with log_error_line(context.log), pgque.client() as client:
            if isinstance(target, PostgresReplicas):
                found = postgres_verify.verify(client, name, name, table, target)
            else:
                from ..spark.replicas import verify

                spark, address = open_session(pyspark), executors_address(pgque, client.url)
                found = verify.verify(spark, client, name, name, table, target, address)
        return _result(found, _repair_job_name(database, name), config.show_rows)

    return equals_source


def failed_check(replica: dg.AssetKey, table: Apart) -> dg.AssetCheckEvaluation:
    """Returns the result of `equals_source` for a table that stands apart from a batch."""
    return dg.AssetCheckEvaluation(
        replica,
        _CHECK,
        passed=False,
        severity=dg.AssetCheckSeverity.ERROR,
        description=f"{table.name} stands apart from the other tables, which go on: its replica "
        f"ends at tick {table.tick_id}. {table.reason}",
        metadata={"tick": table.tick_id},
    )


def _result(found: Verification, job: str, show_rows: bool) -> dg.AssetCheckResult:
    metadata: dict[str, Any] = {"rows": found.rows, "differences": found.differences}
    if show_rows and found.examples:
        metadata["examples"] = dg.MetadataValue.table(
            [
                dg.TableRecord(
                    {
                        "kind": each.kind,
                        "table": "\n".join(each.here),
                        "replica": "\n".join(each.there),
                    }
                )
                for each in found.examples
            ]
        )
    if found.tick_id is not None:
        metadata["tick"] = found.tick_id
    if found.version is not None:
        metadata["version"] = found.version
    severity = dg.AssetCheckSeverity.ERROR
    if found.why_not is not None:
        severity, told = dg.AssetCheckSeverity.WARN, f"Not compared: {found.why_not.rstrip('.')}."
    elif found.is_equal:
        told = f"{found.rows} rows are equal at tick {found.tick_id}."
    else:
        shown = "; ".join(f"{each.kind} {each.key}" for each in found.examples)
        told = (
            f"{found.differences} of {found.rows} rows differ at tick {found.tick_id}: {shown}. "
            f"The job {job} writes the rows that differ."
        )
    return dg.AssetCheckResult(
        passed=found.is_equal, severity=severity, description=told, metadata=metadata
    )
