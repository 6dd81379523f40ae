"""The check that compares a replica with its table, and the job that repairs it."""

from datetime import timedelta
from typing import Any

import dagster as dg
from pydantic import Field

from ..assets.step import executors_address
from ..client import InvalidArgument
from ..client.captured_tables import captured_tables, copy_again
from ..client.replica_status import ReplicaStatus, replica_of_table
from ..client.replicas import postgres_verify
from ..client.replicas.postgres import PostgresReplicas
from ..client.replicas.recording import compare_and_record
from ..client.replicas.verification import Verification
from ..client.table_spec import TableSpec
from ..project.database import Database
from ..project.resource import PgqueResource, takes_resource
from ..project.step_errors import failing_by_its_reason
from ..spark.cluster.session import open_session
from .names import Target
from .verified import check_key, how_to_mend, repair_job_name


class RepairTables(dg.Config):
    """What the job that repairs replicas is told."""

    tables: list[str] = Field(description="The tables, such as public.orders.")


def repair_job(database: Database, name: str, queue: str) -> dg.JobDefinition:
    """Returns the job that has tables read again, and the rows written that differ.

    Args:
        database: the database of the tables.
        name: of the consumer.
        queue: the queue of the changes.
    """

    @dg.op(name=f"{repair_job_name(database, name)}_tables")
    @takes_resource(database)
    def request(context: dg.OpExecutionContext, config: RepairTables, pgque: PgqueResource) -> None:
        with failing_by_its_reason(context.log), pgque.client() as client:
            if not config.tables:
                raise InvalidArgument("no table is named", "Name one: tables: [public.orders].")
            captured = captured_tables(client, queue)
            if unknown := sorted(set(config.tables) - set(captured)):
                raise InvalidArgument(
                    f"{', '.join(unknown)} is not captured into queue {queue}",
                    f"Captured are: {', '.join(captured) or 'none'}.",
                )
            for table in config.tables:
                copy_again(client, queue, name, table)

    @dg.job(
        name=repair_job_name(database, name),
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
    database: Database,
    name: str,
    queue: str,
    table: TableSpec,
    target: Target,
    timeout: timedelta,
) -> dg.AssetChecksDefinition:
    """Returns the check that a replica has the rows of its table at one tick.

    Args:
        database: the database of the table.
        name: of the consumer.
        queue: the queue of the changes.
        table: the table.
        target: where the replica is.
        timeout: how long comparing them may take.
    """
    key = check_key(database, name, table)

    def evaluate(
        context: dg.AssetCheckExecutionContext,
        config: VerifiedTable,
        pgque: PgqueResource,
        pyspark: Any = None,
    ) -> dg.AssetCheckResult:
        def compare() -> Verification:
            with pgque.client() as client:
                if isinstance(target, PostgresReplicas):
                    return postgres_verify.verify(client, queue, name, table, target)
                from ..spark.replicas import verify

                spark, address = open_session(pyspark), executors_address(pgque, client.url)
                return verify.verify(spark, client, queue, name, table, target, address)

        with failing_by_its_reason(context.log), pgque.client() as client:
            found = compare_and_record(client, queue, name, table, compare, timeout)
            status = client.run(replica_of_table(queue, name, table.source))
        result = _result(found, status, repair_job_name(database, name), config.show_rows)
        _show_as_newest(context, key, result)
        return result

    def without_spark(
        context: dg.AssetCheckExecutionContext, config: VerifiedTable, pgque: PgqueResource
    ) -> dg.AssetCheckResult:
        return evaluate(context, config, pgque)

    def with_spark(
        context: dg.AssetCheckExecutionContext,
        config: VerifiedTable,
        pgque: PgqueResource,
        pyspark: dg.ResourceParam[Any],
    ) -> dg.AssetCheckResult:
        return evaluate(context, config, pgque, pyspark)

    # Dagster starts a session for whoever has the parameter.
    function = without_spark if isinstance(target, PostgresReplicas) else with_spark
    declare = dg.asset_check(
        asset=key.asset_key,
        name=key.name,
        description=f"The replica has the rows of {table.source}, compared at one tick.",
    )
    return declare(takes_resource(database)(function))


def _show_as_newest(
    context: dg.AssetCheckExecutionContext, key: dg.AssetCheckKey, result: dg.AssetCheckResult
) -> None:
    """Reports a result once more if a run has evaluated the check since this one was launched.

    Dagster shows the evaluation of the run that was launched last, and that one has not compared.
    """
    (last,) = context.instance.event_log_storage.get_asset_check_execution_history(
        key, limit=1
    ) or (None,)
    if last is not None and last.run_id != context.run.run_id:
        context.instance.report_runless_asset_event(
            dg.AssetCheckEvaluation(
                *(key.asset_key, key.name, result.passed, result.metadata),
                severity=result.severity,
                description=result.description,
            )
        )


def _result(
    found: Verification, status: ReplicaStatus | None, job: str, show_rows: bool
) -> dg.AssetCheckResult:
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
    if found.problem is not None:
        told = f"At tick {found.tick_id}, {found.problem}. {how_to_mend(job)}."
    elif found.why_not is not None:
        told = f"Not compared: {found.why_not.rstrip('.')}."
        if status is not None and status.verified_problem is not None:
            told += f" The last comparison counts: {status.verdict}."
        elif status is None or status.failure is None:
            severity = dg.AssetCheckSeverity.WARN
    else:
        told = f"{found.rows} rows are equal at tick {found.tick_id}."
    return dg.AssetCheckResult(
        passed=found.is_equal, severity=severity, description=told, metadata=metadata
    )
