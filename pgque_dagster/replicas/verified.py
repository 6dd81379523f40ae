"""What each run says of the last comparison: in a replica's metadata, and by its check.

Dagster shows a check for the newest materialization only, so the run that materializes a replica
evaluates the check, too: from the record at the source, without comparing anything.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg

from ..client.replica_status import ReplicaStatus
from ..client.replicas.apart import Apart
from ..client.table_spec import TableSpec
from ..project.database import Database
from ..project.keys import ROW_COUNT, identifier
from .names import replica_key

CHECK = "equals_source"


def check_key(database: Database, name: str, table: TableSpec) -> dg.AssetCheckKey:
    """Returns the key of the check that a replica has the rows of its table."""
    return dg.AssetCheckKey(replica_key(database, name, table), CHECK)


def repair_job_name(database: Database, name: str) -> str:
    """Returns the name of the job that repairs replicas."""
    return database.named(f"{identifier(name)}_repair")


def recorded_metadata(status: ReplicaStatus) -> dict[str, Any]:
    """Returns how many rows a replica has, and what its last comparison found."""
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
    """Evaluates the check of a replica by what is recorded of its last comparison.

    Args:
        key: the check.
        status: how the replica stands.
        repair: the name of the job that repairs it.
        cron: when it is compared.
    """
    told, severity = status.verdict, dg.AssetCheckSeverity.WARN
    passed = status.verified_tick is not None and status.unverified is None
    if status.verified_problem is not None:
        passed, severity = False, dg.AssetCheckSeverity.ERROR
        told += f". {how_to_mend(repair)}"
    elif passed and cron is not None and is_overdue(status.verified_age, cron):
        passed, told = False, f"{told}: see why it was not compared since, as {cron} says"
    return dg.AssetCheckEvaluation(
        key.asset_key,
        key.name,
        passed,
        recorded_metadata(status),
        severity=severity,
        description=f"{told[:1].upper()}{told[1:]}.",
    )


def apart_check(key: dg.AssetCheckKey, table: Apart) -> dg.AssetCheckEvaluation:
    """Evaluates the check of a replica whose table stands apart from a batch."""
    return dg.AssetCheckEvaluation(
        key.asset_key,
        key.name,
        passed=False,
        metadata={"tick": table.tick_id},
        severity=dg.AssetCheckSeverity.ERROR,
        description=f"{table.name} stands apart from the other tables, which go on: its replica "
        f"ends at tick {table.tick_id}. {table.reason}",
    )


def how_to_mend(repair: str) -> str:
    """Returns what to do about a difference."""
    return f"The job {repair} writes the rows that differ; a comparison that finds none ends this"


def is_overdue(verified_age: timedelta | None, cron: str) -> bool:
    """Whether two times of a schedule have passed since a comparison."""
    # Dagster has no other public function that reads a cron expression.
    times = dg.TimeWindowPartitionsDefinition("2000-01-01", "%Y-%m-%d", cron_schedule=cron)
    last = times.get_last_partition_window()
    age = verified_age or timedelta(0)
    return last is not None and datetime.now(UTC) - age < last.start
