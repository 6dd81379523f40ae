"""`build_table_replicas`: replicas of tables, which follow each change and are verified."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import dagster as dg

from ..assets.decorators import pgque_multi_asset
from ..assets.outputs import LeftOut
from ..checks.dead_letters import build_dead_letter_checks
from ..checks.health import build_queue_health_checks
from ..checks.lag import build_consumer_lag_checks
from ..client import Client, PgqueError
from ..client.captured_tables import capture_new
from ..client.registrations import enter_deployment
from ..client.replica_status import ReplicaStatus, name_replicas, replica_of_table
from ..client.replicas import postgres
from ..client.replicas.apart import Apart
from ..client.replicas.deletes import MARKS
from ..client.replicas.postgres import PostgresReplicas
from ..client.replicas.recording import record_batch
from ..client.replicas.standing import Log, Replicated, acked, request_first_copies
from ..client.source_tables import SourceTable
from ..client.table_spec import TableSpec
from ..jobs.table_jobs import build_table_maintenance_job
from ..project.database import DEFAULT, Database
from ..project.deployment import consuming_asset
from ..project.keys import ROWS, TABLE, URI, identifier
from ..project.lineage import build_queue_assets
from ..project.registration import capture_sensor_name, ensure_consumer, ensure_queue
from ..project.resource import PgqueResource, takes_resource
from ..sensors.batch_sensor import build_pgque_sensor
from ..spark.replicas.target import DeltaReplicas, IcebergReplicas, LakeReplicas
from .names import (
    Target,
    check_tables,
    replica_key,
    source_key,
    wildcard_check,
    wildcard_result,
)
from .verified import apart_check, check_key, recorded_check, recorded_metadata, repair_job_name
from .verify_sensor import is_comparing, verify_sensor
from .verifying import repair_job, verify_check
from .watching import Evaluate, evaluate_lag, evaluate_queue, watch_sensor

if TYPE_CHECKING:
    from ..spark import SparkBatch
    from ..spark.sinks.tables import TableSink

_KINDS = {DeltaReplicas: "deltalake", IcebergReplicas: "iceberg", PostgresReplicas: "postgres"}
_CAPTURE_SECONDS = 30


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
    maintain_cron: str | None = "30 * * * *",
    group_name: str | None = None,
    database: str = DEFAULT,
    running: bool = True,
    names: Sequence[str | TableSpec] = (),
    queue: str | None = None,
    queue_assets: bool = True,
) -> dg.Definitions:
    """Builds replicas of tables: their assets, sensors, checks and lineage.

    A sensor captures the tables into the queue, which it creates. Another one watches the
    queue: it observes it, and evaluates the checks on it each minute. The first batch copies
    each table in one snapshot, without a lock; each further batch applies the changes of all
    tables: in the lake by one commit for each table, in PostgreSQL in one transaction.
    docs/replicas.md says what has a table copied again.

    Args:
        name: the name of the consumer and, without `queue`, of the queue, and the first part of
            the keys of the replicas.
        tables: the tables, such as `public.orders`; each needs a primary key. A `TableSpec` leaves
            out columns, or masks them.
        target: where the replicas are: `DeltaReplicas`, `IcebergReplicas`, or `PostgresReplicas`
            for tables of the same schema in another database, or of another schema.
        max_age: how long a change waits for others before a run applies it.
        max_lag: beyond this lag, the check `consumer_lag_<name>` on the queue fails; None for no
            check.
        lease_ttl: how long the lease of a run that died lasts. Until then no other run may apply
            its batch.
        verify_cron: when each table is compared with its replica, row by row; None for no
            schedule. A table that was copied is compared at once, and small ones more often.
        verify_timeout: how long comparing a table may take.
        maintain_cron: when small files of replicas in the lake are united, and files that nobody
            needs are deleted; None for a job that runs only by hand.
        group_name: the group of the assets; by default the name.
        database: the key of the PgqueResource whose database has the tables and the queue. The
            keys of the assets begin with it, if it is not the default one.
        running: whether sensors and schedule are on from the start; else somebody switches them on
            in the UI.
        names: the names with `*` from which the tables were found, with those of other tables. A
            check fails if they stand for others now.
        queue: the queue of other replicas, which are defined elsewhere, or one into which the
            tables are captured by hand; None for one of their own. The consumer has a position of
            its own there, and no table gets a second set of triggers.
        queue_assets: whether the queue's assets, and the checks on them but for that on the lag,
            are defined here; False if `build_queue_assets` or a QueueComponent defines them.

    Returns:
        The definitions. They need the resources of the database and `pyspark`. Their
        `map_resolved_asset_specs` gives the assets owners, tags, and the like.

    Raises:
        DagsterInvalidDefinitionError: if there are no tables, or one is named twice, without its
            schema, or in a way that the target cannot have.

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
    of = Database(database)
    prefix = of.named(identifier(name))
    group_name = group_name or identifier(name)
    owns_queue = queue in (None, name)
    queue_assets = queue_assets and owns_queue
    queue = queue or name
    replicas = _replicas(of, name, queue, specs, target, group_name, lease_ttl, verify_cron)
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
    verifying = [verify_check(of, name, queue, spec, target, verify_timeout) for spec in specs]
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
    job = dg.define_asset_job(
        f"{prefix}_verify",
        dg.AssetSelection.checks(*verifying),
        description=f"Compares the tables of {name} with their replicas.",
    )
    longest = verify_timeout * len(specs)
    crons: list[tuple[Any, str | None]] = [(job, verify_cron)]
    if not isinstance(target, PostgresReplicas):
        stored = partial(_stored_tables, target, name, queue, tables=specs)
        maintenance = build_table_maintenance_job(
            stored, database=database, name=f"{prefix}_maintain"
        )
        crons.append((maintenance, maintain_cron))
    schedules = [
        dg.ScheduleDefinition(
            job=each,
            cron_schedule=cron,
            should_execute=partial(_is_free, each.name, longest),
            default_status=dg.DefaultScheduleStatus.RUNNING
            if running
            else dg.DefaultScheduleStatus.STOPPED,
        )
        for each, cron in crons
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
            _capture_sensor(of, name, queue, specs, target, status, replicas),
            build_pgque_sensor(
                [replicas],
                name=f"{prefix}_sensor",
                max_age=max_age,
                # Each compares a whole table.
                with_checks=False,
                default_status=status,
            ),
            verify_sensor(of, name, queue, specs, target, job.name, longest, status),
            *([watching] if evaluations or owns_queue else ()),
        ],
        jobs=[*(each for each, _ in crons), repair_job(of, name, queue)],
        schedules=schedules,
    )


def _is_free(job: str, longest: timedelta, context: dg.ScheduleEvaluationContext) -> bool:
    """Whether the last run of a job is over, so that slow runs do not pile up."""
    return not is_comparing(context.instance, job, longest)


def _capture_sensor(
    database: Database,
    name: str,
    queue: str,
    tables: Sequence[TableSpec],
    target: Target,
    status: dg.DefaultSensorStatus,
    replicas: dg.AssetsDefinition,
) -> dg.SensorDefinition:
    names = ", ".join(table.source for table in tables)

    @dg.sensor(
        name=capture_sensor_name(name, database),
        minimum_interval_seconds=_CAPTURE_SECONDS,
        default_status=status,
        description=f"Captures {names} into the queue {queue}, once for each table.",
    )
    @takes_resource(database)
    def capture_sensor(context: dg.SensorEvaluationContext, pgque: PgqueResource) -> dg.SkipReason:
        try:
            with pgque.client() as client:
                ensure_queue(client, queue, {})
                # Before the first event, which the consumer would miss otherwise.
                ensure_consumer(client, queue, name)
                # Before a copy of the project captures tables for replicas that are not its own.
                deployment = pgque.deployment_of(context.instance)
                asset = consuming_asset(context, deployment, replicas.keys)
                client.run(enter_deployment(queue, name, asset))
                # Before the first change, which another consumer passes over then.
                client.run(name_replicas(queue, name, [table.source for table in tables]))
                is_new = capture_new(client, queue, tables, target.check)
                requested = request_first_copies(client, queue, name, is_new)
        except PgqueError as error:
            context.log.warning(str(error))
            return dg.SkipReason(str(error))
        if added := [table for table in is_new if is_new[table]]:
            return dg.SkipReason(f"captured {', '.join(added)}; the next batch copies them")
        if requested:
            return dg.SkipReason(f"the next batch copies {', '.join(requested)}")
        return dg.SkipReason(f"all tables are captured: {names}")

    return capture_sensor


def _replicas(
    database: Database,
    name: str,
    queue: str,
    tables: Sequence[TableSpec],
    target: Target,
    group_name: str,
    lease_ttl: timedelta,
    verify_cron: str | None,
) -> dg.AssetsDefinition:
    specs = [
        dg.AssetSpec(
            replica_key(database, name, table),
            description=f"The replica of the table {table.source}.",
            group_name=group_name,
            kinds={_KINDS[type(target)]},
            metadata=_place(target, table),
            deps=[source_key(database, queue, table)],
        )
        for table in tables
    ]

    @pgque_multi_asset(
        queue=queue,
        database=database.name,
        consumer=name,
        specs=specs,
        lease_ttl=lease_ttl,
        name=database.named(f"{identifier(name)}_replicas"),
    )
    def replicas(
        context: dg.AssetExecutionContext, batch: "SparkBatch"
    ) -> Iterator[dg.MaterializeResult[Any] | dg.AssetCheckEvaluation | LeftOut]:
        claim, repair, done = acked(batch.claim), repair_job_name(database, name), []
        for found in _replicate(target, batch, tables, context.log.info):
            done.append(found)
            key = check_key(database, name, found.spec)
            if isinstance(found, Apart):
                yield apart_check(key, found)
                yield LeftOut(key.asset_key)
                continue
            before = claim.session.run(replica_of_table(queue, name, found.source.name))
            status = (before or ReplicaStatus(queue, name, found.source.name)).after(
                found, claim.lease.tick_id
            )
            yield dg.MaterializeResult(
                key.asset_key,
                metadata=_metadata(source_key(database, queue, found.spec), found, target)
                | recorded_metadata(status),
            )
            yield recorded_check(key, status, repair, verify_cron)
        record_batch(claim, done)

    return replicas


def _replicate(
    target: Target, batch: "SparkBatch", tables: Sequence[TableSpec], log: Log
) -> Iterable[Replicated | Apart]:
    if isinstance(target, PostgresReplicas):
        return postgres.replicate(batch.claim, tables, target, log)
    # Late, because it loads Spark.
    from ..spark.replicas import replica

    return replica.replicate(batch, tables, target, log)


def _stored_tables(
    target: LakeReplicas, name: str, queue: str, client: Client, tables: Sequence[TableSpec]
) -> "list[TableSink]":
    """Returns the tables that the replicas are, as far as there are some yet."""
    from ..spark.replicas.formats import owner_of, replica_of

    sources = [SourceTable.find(client, table) for table in tables]
    owner = owner_of(queue, name)
    replicas = [replica_of(target, source, owner, client) for source in sources]
    return [replica.sink for replica in replicas if replica.state() is not None]


def _place(target: Target, table: TableSpec) -> dict[str, str]:
    """Returns where a replica is, before its first batch says it, as metadata."""
    schema, relation = table.path
    if isinstance(target, DeltaReplicas):
        return {URI: "/".join((target.base_dir.rstrip("/"), schema, relation))}
    if isinstance(target, PostgresReplicas):
        schema = target.schema or schema
    return {TABLE: f"{schema}.{relation}"}


def _metadata(source: dg.AssetKey, replicated: Replicated, target: Target) -> dict[str, Any]:
    columns = [
        *(
            dg.TableColumn(column.name, column.data_type, description=column.comment)
            for column in replicated.source.columns
        ),
        *(
            dg.TableColumn(mark, "bigint", description=comment)
            for mark, comment in MARKS[target.deletes].items()
        ),
    ]
    lineage = {
        column.name: [dg.TableColumnDep(source, column.name)]
        for column in replicated.source.columns
    }
    stored: dict[str, Any] = {
        URI if isinstance(target, DeltaReplicas) else TABLE: replicated.location,
        "dagster/column_schema": dg.TableSchema(columns),
        "dagster/column_lineage": dg.TableColumnLineage(lineage),
    }
    if replicated.version is not None:
        stored["pgque/version"] = replicated.version
    if replicated.reason is None:
        return {**stored, ROWS: replicated.rows}
    stored |= {"pgque/copied_because": replicated.reason}
    return stored if replicated.written is None else {**stored, ROWS: replicated.written}
