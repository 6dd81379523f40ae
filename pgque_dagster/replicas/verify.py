"""The check that a replica has the rows of its table.

Its evaluation compares the rows. Dagster only shows a check for the newest materialization, so the
run that materializes a replica evaluates the check, too, from the record at the source.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
from pydantic import Field

from ..assets.step import executors_address
from ..client.replicas.key_parts import KeyPart
from ..client.replicas.outcome import Apart
from ..client.replicas.postgres import verify as postgres
from ..client.replicas.postgres.location import PostgresReplicas
from ..client.replicas.spec import TableSpec
from ..client.replicas.status import ReplicaStatus, replica_of_table
from ..client.replicas.verify import Verification, compare_and_record
from ..project.database import Database
from ..project.keys import ROW_COUNT, identifier
from ..project.resource import PgqueResource, takes_resource
from ..project.step_errors import failing_by_its_reason
from ..spark.cluster.session import open_session
from .names import Target, replica_key

CHECK = "equals_source"


def check_key(database: Database, name: str, table: TableSpec) -> dg.AssetCheckKey:
    """Returns the key of the check that a replica has the rows of its table."""
    return dg.AssetCheckKey(replica_key(database, name, table), CHECK)


def repair_job_name(database: Database, name: str) -> str:
    """Returns the name of the job that repairs replicas."""
    return database.named(f"{identifier(name)}_repair")


def recorded_metadata(status: ReplicaStatus) -> dict[str, Any]:
    """Returns how many rows a replica has, and the result of its last comparison."""
    found: dict[str, Any] = {
        "pgque/verified": status.verdict,
        "pgque/batches_since_verified": status.batches,
    }
    if status.rows is not None:
        found[ROW_COUNT] = status.rows
    if status.counted_tick is not None:
        found["pgque/row_count_at_tick"] = status.counted_tick
    if status.verified_tick is not None and status.verified_age is not None:
        found["pgque/verified_tick"] = status.verified_tick
        found["pgque/verified_age_seconds"] = round(status.verified_age.total_seconds())
    return found


def recorded_check(
    key: dg.AssetCheckKey, status: ReplicaStatus, repair: str, cron: str | None
) -> dg.AssetCheckEvaluation:
    """Evaluates the check of a replica from the record of its last comparison.

    Args:
        key: the check.
        status: the state of the replica.
        repair: the name of the job that repairs it.
        cron: when it is compared.
    """
    told, severity = status.verdict, dg.AssetCheckSeverity.WARN
    passed = status.verified_tick is not None and status.unverified is None
    passed = passed and not status.is_partial and status.doubt is None
    if status.verified_problem is not None:
        passed, severity = False, dg.AssetCheckSeverity.ERROR
        told += f". {how_to_mend(repair)}"
    elif passed and cron is not None and is_overdue(status, cron):
        passed, told = False, f"{told}: see why it was not compared since, as {cron} requires"
    return dg.AssetCheckEvaluation(
        key.asset_key,
        key.name,
        passed,
        recorded_metadata(status) | ({"parts": status.compared} if status.compared else {}),
        severity=severity,
        description=f"{told[:1].upper()}{told[1:]}.",
    )


def apart_check(key: dg.AssetCheckKey, table: Apart) -> dg.AssetCheckEvaluation:
    """Evaluates the check of a replica whose table is set apart from a batch."""
    told = (
        f"{table.name} is set apart from the other tables, which continue: its replica ends at "
        f"tick {table.tick_id}. {table.reason}"
    )
    if table.copying is not None:
        told = f"{table.name} is being copied, while the other tables continue: {table.copying}. "
        told += table.reason
    return dg.AssetCheckEvaluation(
        key.asset_key,
        key.name,
        passed=False,
        metadata={"tick": table.tick_id},
        severity=dg.AssetCheckSeverity.ERROR if table.reason else dg.AssetCheckSeverity.WARN,
        description=told.rstrip(),
    )


def how_to_mend(repair: str) -> str:
    """Returns what to do about a difference."""
    return f"The job {repair} writes the rows that differ; the next equal comparison ends this"


def is_overdue(status: ReplicaStatus, cron: str) -> bool:
    """Returns whether two scheduled times, and one for each further part, have passed since."""
    # Dagster has no other public function that reads a cron expression.
    times = dg.TimeWindowPartitionsDefinition("2000-01-01", "%Y-%m-%d", cron_schedule=cron)
    last = times.get_last_partition_window()
    if last is None:
        return False
    others = max((each["of"] for each in status.compared), default=1) - 1
    age = (status.verified_age or timedelta(0)) - others * (last.end - last.start)
    return datetime.now(UTC) - age < last.start


class VerifiedTable(dg.Config):
    """The configuration of the check `equals_source`."""

    show_rows: bool = Field(
        default=False, description="Whether the metadata show both rows of a difference."
    )
    whole: bool = Field(
        default=True,
        description="With verify_share: whether all parts of a large table are compared, or the "
        "next one. If such a run was killed, the next one compares those that are left.",
    )


def verify_check(
    database: Database,
    name: str,
    queue: str,
    table: TableSpec,
    target: Target,
    timeout: timedelta,
    share: float,
) -> dg.AssetChecksDefinition:
    """Returns the check that a replica has the rows of its table at one tick."""
    key = check_key(database, name, table)

    def evaluate(
        context: dg.AssetCheckExecutionContext,
        config: VerifiedTable,
        pgque: PgqueResource,
        pyspark: Any = None,
    ) -> dg.AssetCheckResult:
        def compare(part: KeyPart | None) -> Verification:
            with pgque.client() as client:
                if isinstance(target, PostgresReplicas):
                    return postgres.verify(client, queue, name, table, target, part)
                from ..spark.replicas import verify

                spark, address = open_session(pyspark), executors_address(pgque, client.url)
                return verify.verify(spark, client, queue, name, table, target, address, part)

        with failing_by_its_reason(context.log), pgque.client() as client:
            told = context.log.info
            found = compare_and_record(
                *(client, queue, name, table, compare, timeout, share, told), whole=config.whole
            )
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

    # Dagster starts a session for every function with this parameter.
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
    """Reports a result again if a run has evaluated the check since this one was launched.

    Dagster shows the evaluation of the run that was launched last, which has not compared.
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
    passed, parts = found.is_equal, status and status.comparing
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
        told = f"At tick {found.tick_id}, {found.problem}. "
        is_due = found.doubt and status is not None and not status.is_copied
        told += "The next batch copies the table." if is_due else f"{how_to_mend(job)}."
    elif found.why_not is not None:
        told = f"Not compared: {found.why_not.rstrip('.')}."
        if status is not None and status.failure is not None:
            told = f"Not compared, because the table is set apart: {status.failure}"
        elif status is not None and status.verified_problem is not None:
            told += f" The last comparison counts: {status.verdict}."
        else:
            severity = dg.AssetCheckSeverity.WARN
    else:
        of = "" if parts is None else " of the part that was compared last"
        told = f"{found.rows} rows{of} are equal at tick {found.tick_id}."
        if status is not None and (status.doubt or (parts and status.state != "equal")):
            passed, severity = False, dg.AssetCheckSeverity.WARN
            if status.verified_problem is not None:
                severity = dg.AssetCheckSeverity.ERROR
                told += f" Others differ: {status.verified_problem}. {how_to_mend(job)}."
            if status.doubt is not None:
                told += f" Others may differ since tick {status.doubt_tick}: {status.doubt}."
    if status is not None and parts is not None:
        told, metadata["parts"] = f"{told} {parts}.", status.compared
    return dg.AssetCheckResult(
        passed=passed, severity=severity, description=told, metadata=metadata
    )
