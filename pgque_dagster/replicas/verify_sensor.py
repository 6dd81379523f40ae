"""When replicas are compared besides their schedule: after a copy, and small ones every minutes."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import dagster as dg

from ..client import Client, PgqueError
from ..client.replica_status import ReplicaStatus
from ..client.replicas.postgres import PostgresReplicas
from ..client.source_tables import SourceTable
from ..client.table_spec import TableSpec
from ..project.database import Database
from ..project.resource import PgqueResource, takes_resource
from ..spark.replicas.target import LakeReplicas
from .names import Target
from .verified import check_key

_SECONDS = 30
# So that a row that somebody changes in a replica is found within five.
_SOON = timedelta(minutes=4)
_A_RUN = timedelta(minutes=1)
# Of all tables that are compared so often in one run: about 15 s.
_MOST_ROWS = 1_000_000
# What a run needs besides comparing.
_STARTING = timedelta(minutes=10)
_UNFINISHED = [
    *(dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING),
    *(dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING),
]


def is_comparing(instance: dg.DagsterInstance, job: str, longest: timedelta) -> bool:
    """Whether a run of the job that compares is unfinished.

    Args:
        instance: of Dagster.
        job: the job's name.
        longest: how long its comparisons may take; a run that is older has died unseen.
    """
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
    """Returns the sensor that has replicas compared without waiting for the schedule.

    A table that was copied is compared once. In PostgreSQL, tables of together a million rows at
    most are compared every four minutes. In the lake, where a foreign change is a commit, the
    newest commits are looked at every four minutes.

    Args:
        database: the database of the tables.
        name: of the consumer.
        queue: the queue of the changes.
        tables: the tables.
        target: where the replicas are.
        job_name: the job that compares.
        longest: how long a run of it may take.
        status: whether the sensor is on from the start.
    """
    spec_of = {table.path: table for table in tables}

    def request(found: Sequence[ReplicaStatus], run_key: str | None = None) -> dg.RunRequest:
        specs = [spec_of[TableSpec.of(each.table).path] for each in found]
        keys = [check_key(database, name, spec) for spec in specs]
        return dg.RunRequest(run_key=run_key, asset_check_keys=keys)

    @dg.sensor(
        name=f"{job_name}_sensor",
        job_name=job_name,
        minimum_interval_seconds=_SECONDS,
        default_status=status,
        description=f"Has the replicas of {name} compared after a copy, and small tables often.",
    )
    @takes_resource(database)
    def sensor(
        context: dg.SensorEvaluationContext, pgque: PgqueResource
    ) -> dg.RunRequest | dg.SkipReason:
        if is_comparing(context.instance, job_name, longest):
            return dg.SkipReason(f"a run of {job_name} compares")
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
                copied = [each for each in found if each.copied_tick not in (None, each.tried_copy)]
                copies = "copied " + ", ".join(f"{x.table}@{x.copied_tick}" for x in copied)
                if copied and copies != before:
                    context.update_cursor(f"{copies}|{looked}")
                    return request(copied, copies)
                if isinstance(target, PostgresReplicas):
                    due = _small(found)
                elif now - float(looked or 0) < _SOON.total_seconds():
                    due = []
                else:
                    context.update_cursor(f"{before}|{now}")
                    due = _changed_by_others(client, queue, name, target, found, spec_of)
        except PgqueError as error:
            context.log.warning(str(error))
            return dg.SkipReason(str(error))
        return request(due) if due else dg.SkipReason("nothing is to be compared now")

    return sensor


def _small(found: Sequence[ReplicaStatus]) -> list[ReplicaStatus]:
    """Returns the tables that are due and small enough, those first that waited longest.

    With one that is due, those are compared that would be due while the run goes on.
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
    """Returns the replicas in the lake whose newest commit of rows is not ours."""
    # Late, because it loads Spark.
    from ..spark.replicas.formats import owner_of, replica_of

    owner = owner_of(queue, name)
    return [
        each
        for each in found
        if each.verified_problem is None
        for source in [SourceTable.find(client, spec_of[TableSpec.of(each.table).path])]
        if replica_of(target, source, owner, client).state() is None
    ]
