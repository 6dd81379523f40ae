"""The jobs that compare, repair and maintain replicas, and when they run.

Replicas are compared on a schedule and after a copy, and small ones every few minutes.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from ..client import Client, InvalidArgument, PgqueError, QueueNotFound
from ..client.replicas.capture import captured_tables, copy_again
from ..client.replicas.postgres.location import PostgresReplicas
from ..client.replicas.source import SourceTable
from ..client.replicas.spec import TableSpec
from ..client.replicas.status import ReplicaStatus
from ..jobs.table_jobs import build_table_maintenance_job
from ..project.consumers import repository_of
from ..project.database import Database
from ..project.keys import WARM, identifier
from ..project.registration import who_creates
from ..project.resource import PgqueResource, takes_resource
from ..project.step_errors import failing_by_its_reason
from ..sensors.run_requests import without_step_process
from ..spark.replicas.location import LakeReplicas
from .names import Target, replica_key
from .verify import check_key, repair_job_name

if TYPE_CHECKING:
    from ..spark.sinks.tables import TableSink

# Dagster has no public name for the type of a job of assets.
Job = Any

_SECONDS = 30
# With this interval, a row that was changed in a replica is found within five minutes.
_SOON = timedelta(minutes=4)
_A_RUN = timedelta(minutes=1)
# The rows of all tables that one run compares this often: about 15 s.
_MOST_ROWS = 1_000_000
# The time that a run needs besides comparing.
_STARTING = timedelta(minutes=10)
_UNFINISHED = [
    *(dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING),
    *(dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING),
]


def verify_job(database: Database, name: str, checks: Sequence[dg.AssetChecksDefinition]) -> Job:
    """Returns the job that compares all tables with their replicas, by their checks."""
    return dg.define_asset_job(
        database.named(f"{identifier(name)}_verify"),
        dg.AssetSelection.checks(*checks),
        description=f"Compares the tables of {name} with their replicas.",
    )


class RepairTables(dg.Config):
    """The configuration of the job that repairs replicas."""

    tables: list[str] = Field(description="The tables, such as public.orders.")


def repair_job(database: Database, name: str, queue: str) -> dg.JobDefinition:
    """Returns the job that reads tables again, and writes the rows that differ."""

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
        description=f"Makes the next batch of {name} read tables again, and write the rows that "
        "differ in one commit per table.",
    )
    def repair_tables() -> None:
        request()

    return repair_tables


def maintain_job(
    database: Database, name: str, queue: str, tables: Sequence[TableSpec], target: LakeReplicas
) -> dg.JobDefinition:
    """Returns the job that maintains the tables of replicas in the lake."""
    by_key = {replica_key(database, name, table): table for table in tables}
    return build_table_maintenance_job(
        partial(_stored_tables, target, name, queue, by_key),
        database=database.name,
        name=database.named(f"{identifier(name)}_maintain"),
    )


def _stored_tables(
    target: LakeReplicas,
    name: str,
    queue: str,
    tables: Mapping[dg.AssetKey, TableSpec],
    client: Client,
) -> "dict[dg.AssetKey, TableSink]":
    """Returns the tables of the replicas that exist already, by their assets."""
    from ..spark.replicas.formats import replica_of

    found = {
        key: replica_of(target, SourceTable.find(client, table), queue, name, client)
        for key, table in tables.items()
    }
    return {key: each.sink for key, each in found.items() if each.state() is not None}


def schedule(
    job: Job,
    cron: str,
    longest: timedelta,
    status: dg.DefaultScheduleStatus,
    config: dict[str, Any],
) -> dg.ScheduleDefinition:
    """Returns the schedule of a job; it skips while a run is in progress, so that none pile up."""

    def whole_config(context: dg.ScheduleEvaluationContext) -> dict[str, Any]:
        return config | (without_step_process(repository_of(context), job.name) or {})

    return dg.ScheduleDefinition(
        job=job,
        cron_schedule=cron,
        run_config_fn=whole_config,
        should_execute=lambda context: not _is_unfinished(context.instance, job.name, longest),
        default_status=status,
    )


def _is_unfinished(instance: dg.DagsterInstance, job: str, longest: timedelta) -> bool:
    """Returns whether a job has an unfinished run; one longer than `longest` counts as dead."""
    since = datetime.now(UTC) - longest - _STARTING
    wanted = dg.RunsFilter(job_name=job, statuses=_UNFINISHED, created_after=since)
    return bool(instance.get_run_records(wanted, limit=1))


def verify_sensor(
    database: Database,
    name: str,
    queue: str,
    tables: Sequence[TableSpec],
    target: Target,
    job_name: str,
    longest: timedelta,
    status: dg.DefaultSensorStatus,
) -> dg.SensorDefinition:
    """Returns the sensor that starts comparisons of replicas between the schedule's times.

    A table is compared once after a copy, and when it may differ. In PostgreSQL, tables with at
    most a million rows in total are compared every four minutes. In the lake, where a foreign
    change is a commit, the newest commits are checked every four minutes.
    """
    spec_of = {table.path: table for table in tables}

    def request(
        config: dict[str, Any] | None, found: Sequence[ReplicaStatus], run_key: str | None = None
    ) -> dg.RunRequest:
        specs = [spec_of[TableSpec.of(each.table).path] for each in found]
        keys = [check_key(database, name, spec) for spec in specs]
        # Small tables are compared often: starting Spark would take most of the time.
        return dg.RunRequest(
            run_key=run_key, run_config=config, asset_check_keys=keys, tags={WARM: "true"}
        )

    @dg.sensor(
        name=f"{job_name}_sensor",
        job_name=job_name,
        minimum_interval_seconds=_SECONDS,
        default_status=status,
        description=f"Compares the replicas of {name} after copies, and small tables often.",
    )
    @takes_resource(database)
    def sensor(
        context: dg.SensorEvaluationContext, pgque: PgqueResource
    ) -> dg.RunRequest | dg.SkipReason:
        if _is_unfinished(context.instance, job_name, longest):
            return dg.SkipReason(f"a run of {job_name} is comparing")
        config = without_step_process(repository_of(context), job_name)
        before, _, looked = (context.cursor or "").rpartition("|")
        now = datetime.now(UTC).timestamp()
        try:
            with pgque.client() as client:
                found = [
                    each
                    for each in client.replicas(queue)
                    if each.consumer == name
                    and each.is_copied
                    and each.failure is None
                    and TableSpec.of(each.table).path in spec_of
                ]
                copied = [each for each in found if each.since_tick not in (None, each.tried_copy)]
                copies = "copied " + ", ".join(f"{x.table}@{x.since_tick}" for x in copied)
                if copied and copies != before:
                    context.update_cursor(f"{copies}|{looked}")
                    return request(config, copied, copies)
                if isinstance(target, PostgresReplicas):
                    due = _small(found)
                elif now - float(looked or 0) < _SOON.total_seconds():
                    due = []
                else:
                    context.update_cursor(f"{before}|{now}")
                    due = _changed_by_others(client, queue, name, target, found, spec_of)
        except QueueNotFound:
            return dg.SkipReason(f"there is no queue yet: {who_creates(name, database)}")
        except PgqueError as error:
            context.log.warning(str(error))
            return dg.SkipReason(str(error))
        return request(config, due) if due else dg.SkipReason("no replica is due for a comparison")

    return sensor


def _small(found: Sequence[ReplicaStatus]) -> list[ReplicaStatus]:
    """Returns the tables that are due and small enough, starting with the longest wait.

    If one is due, this includes tables that would become due while the run is in progress.
    """
    due: list[ReplicaStatus] = []
    rows = 0
    ages = [(each.tried_age or each.stored_age or timedelta(0), each) for each in found]
    for waited, each in sorted(ages, key=lambda pair: pair[0], reverse=True):
        if waited < (_SOON - _A_RUN if due else _SOON):
            break
        if each.rows is None or rows + each.rows > _MOST_ROWS:
            continue
        rows += each.rows
        due.append(each)
    return due


def _changed_by_others(
    client: Client,
    queue: str,
    name: str,
    target: LakeReplicas,
    found: Sequence[ReplicaStatus],
    spec_of: Mapping[tuple[str, str], TableSpec],
) -> list[ReplicaStatus]:
    """Returns the replicas in the lake whose newest commit of rows is another program's."""
    # Imported late, because it loads Spark.
    from ..spark.replicas.formats import replica_of

    return [
        each
        for each in found
        if each.verified_problem is None
        for source in [SourceTable.find(client, spec_of[TableSpec.of(each.table).path])]
        if replica_of(target, source, queue, name, client).state() is None
    ]
