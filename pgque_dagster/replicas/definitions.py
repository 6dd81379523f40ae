"""`build_table_replicas`: replicas of tables, which follow each change and are verified."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Literal

import dagster as dg

from ..checks.dead_letters import build_dead_letter_checks
from ..checks.health import build_queue_health_checks
from ..checks.lag import build_consumer_lag_checks
from ..client.ranges import DEFAULT_MAX_EVENTS
from ..client.replicas.key_parts import share_problem
from ..client.replicas.postgres.location import PostgresReplicas
from ..client.replicas.spec import TableSpec
from ..project.database import DEFAULT, Database
from ..project.keys import TABLE, identifier
from ..project.lineage import build_queue_assets
from ..sensors.batch_sensor import build_pgque_sensor
from .capture import capture_sensor
from .jobs import Job, maintain_job, repair_job, schedule, verify_job, verify_sensor
from .names import Target, check_tables, source_key
from .replicate import replica_assets
from .verify import verify_check
from .watch import (
    Evaluate,
    evaluate_lag,
    evaluate_queue,
    watch_sensor,
    wildcard_check,
    wildcard_result,
)


def build_table_replicas(
    name: str,
    tables: Sequence[str | TableSpec],
    *,
    target: Target,
    max_age: timedelta = timedelta(seconds=60),
    max_lag: timedelta | None = timedelta(minutes=5),
    lease_ttl: timedelta = timedelta(minutes=1),
    verify_cron: str | None = "0 */6 * * *",
    verify_timeout: timedelta = timedelta(hours=1),
    verify_share: float = 1.0,
    maintain_cron: str | None = "30 * * * *",
    group_name: str | None = None,
    database: str = DEFAULT,
    running: bool = True,
    names: Sequence[str | TableSpec] = (),
    queue: str | None = None,
    queue_assets: bool = True,
    capture: Literal["triggers", "wal"] = "triggers",
) -> dg.Definitions:
    """Builds replicas of tables: their assets, sensors, checks and lineage.

    One sensor captures the tables into the queue, which it creates. Another one observes the
    queue, and evaluates the checks on it every minute. The first batches copy the tables without a
    lock; each later batch applies the changes of all tables: in the lake by one commit per table,
    in PostgreSQL in one transaction. docs/replicas.md says when a table is copied again.

    Args:
        name: the name of the consumer and, without `queue`, of the queue, and the first part of
            the keys of the replicas.
        tables: the tables, such as `public.orders`; each needs a primary key. A `TableSpec` leaves
            out columns, or masks them.
        target: where the replicas are: `DeltaReplicas`, `IcebergReplicas`, or `PostgresReplicas`
            for tables of the same schema in another database, or of another schema.
        max_age: how long a change waits for others until a run applies them. Under load, a run
            starts every `max_age`; a shorter one makes more runs and more small files.
        max_lag: beyond this lag, the check `consumer_lag_<name>` on the queue fails; None for no
            check.
        lease_ttl: how long the lease of a run that died lasts. Until then no other run can apply
            its batch.
        verify_cron: when each table is compared with its replica, row by row; None for no
            schedule. A copied table is compared at once, and small tables more often.
        verify_timeout: how long comparing a table may take.
        verify_share: which share of a large table the schedule compares each time, such as 0.1 for
            a tenth: one part after another, each at its own tick.
        maintain_cron: when small files of replicas in the lake are merged, and unneeded files are
            deleted; None for a job that only runs manually.
        group_name: the group of the assets; by default the name.
        database: the key of the PgqueResource whose database has the tables and the queue. The
            keys of the assets begin with it, if it is not the default one.
        running: whether sensors and schedule are on from the start; otherwise turn them on in the
            UI.
        names: the names with `*` from which the tables were found, with the names of other tables.
            A check fails once they match other tables.
        queue: the queue of other replicas, which are defined elsewhere, or a queue into which the
            tables are captured manually; None for their own queue. In a shared queue the consumer
            has its own position, and no table gets a second set of triggers.
        queue_assets: whether the queue's assets, and the checks on them except the one on the lag,
            are defined here; False if `build_queue_assets` or a QueueComponent defines them.
        capture: how changes get into the queue: by triggers on the tables, or from the WAL by
            `pgque relay`.

    Returns:
        The definitions. They need the resources of the database and `pyspark`. Their
        `map_resolved_asset_specs` gives the assets owners, tags, and the like.

    Raises:
        DagsterInvalidDefinitionError: if there are no tables, or one is named twice, without its
            schema, or with a name that the target cannot have.

    Example:
        .. code-block:: python

            defs = dg.Definitions.merge(
                build_table_replicas(
                    "shop", ["public.orders"], target=DeltaReplicas("lake")
                ),
                dg.Definitions(resources={"pgque": PgqueResource(), "pyspark": pyspark}),
            )
    """
    specs = [TableSpec.of(each) for each in tables] if not isinstance(tables, str) else []
    check_tables(name, specs, target)
    if problem := share_problem(verify_share):
        raise dg.DagsterInvalidDefinitionError(f"{name}: verify_share: {problem}")
    of = Database(database)
    prefix = of.named(identifier(name))
    group_name = group_name or identifier(name)
    owns_queue = queue in (None, name)
    queue_assets = queue_assets and owns_queue
    queue = queue or name
    replicas = replica_assets(of, name, queue, specs, target, group_name, lease_ttl, verify_cron)
    sources = [
        dg.AssetSpec(
            source_key(of, queue, spec),
            description=f"The table {spec.source} of PostgreSQL, whose changes the queue {queue} "
            "gets.",
            group_name=group_name,
            kinds={"postgres", "table"},
            metadata={TABLE: spec.source},
        )
        for spec in (specs if owns_queue else ())
    ]
    status = dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED
    verifying = [
        verify_check(of, name, queue, spec, target, verify_timeout, verify_share) for spec in specs
    ]
    watched: list[dg.AssetChecksDefinition] = []
    evaluations: list[Evaluate] = []
    if max_lag is not None:
        watched += build_consumer_lag_checks([replicas], max_lag=max_lag)
        evaluations.append(evaluate_lag(replicas, watched[0], max_lag))
    if names:
        check = wildcard_check(of, name, queue, names, specs, target)
        watched.append(check)
        (key,) = check.check_keys
        evaluations.append(lambda client: [wildcard_result(client, key, names, specs, target)])
    if queue_assets:
        watched += build_queue_health_checks([queue], database=database)
        watched += build_dead_letter_checks([queue], database=database)
        evaluations.append(evaluate_queue(of, queue))
    verify = verify_job(of, name, verifying)
    longest = verify_timeout * len(specs)
    crons: list[tuple[Job, str | None]] = [(verify, verify_cron)]
    if not isinstance(target, PostgresReplicas):
        crons.append((maintain_job(of, name, queue, specs, target), maintain_cron))
    switched = dg.DefaultScheduleStatus.RUNNING if running else dg.DefaultScheduleStatus.STOPPED
    by_parts = {"ops": {each.op.name: {"config": {"whole": False}} for each in verifying}}
    schedules = [
        schedule(job, cron, longest, switched, by_parts if job is verify else {})
        for job, cron in crons
        if cron is not None
    ]
    watching = watch_sensor(
        of,
        name,
        queue=queue if queue_assets else None,
        tables=specs if owns_queue else (),
        evaluations=evaluations,
        status=status,
    )
    of_queue = build_queue_assets(
        queue,
        database=database,
        group_name=group_name,
        producers=[spec.key for spec in sources],
        consumers=[replicas],
    )
    return dg.Definitions(
        assets=[*sources, *(of_queue if queue_assets else ()), replicas],
        asset_checks=[*verifying, *watched],
        sensors=[
            capture_sensor(of, name, queue, specs, target, status, replicas, capture),
            _batch_sensor(f"{prefix}_sensor", replicas, max_age, max_lag, status),
            verify_sensor(of, name, queue, specs, target, verify.name, longest, status),
            *([watching] if evaluations or owns_queue else ()),
        ],
        jobs=[*(job for job, _ in crons), repair_job(of, name, queue)],
        schedules=schedules,
    )


def _batch_sensor(
    name: str,
    replicas: dg.AssetsDefinition,
    max_age: timedelta,
    max_lag: timedelta | None,
    status: dg.DefaultSensorStatus,
) -> dg.SensorDefinition:
    if max_lag is not None and max_lag <= max_age:
        raise dg.DagsterInvalidDefinitionError(
            f"{name}: changes wait up to max_age ({max_age}), so the check on the lag would fail "
            f"at max_lag ({max_lag}): make max_lag longer, or max_age shorter"
        )
    return build_pgque_sensor(
        [replicas],
        name=name,
        # Under load, a run starts every max_age, not at the first change.
        min_events=DEFAULT_MAX_EVENTS,
        max_age=max_age,
        # Each run compares a whole table.
        with_checks=False,
        default_status=status,
    )
