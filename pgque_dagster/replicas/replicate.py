"""The assets of the replicas; a run applies its batch to them."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg

from ..assets.decorators import pgque_multi_asset
from ..assets.outputs import LeftOut
from ..client.replicas.deletes import MARKS
from ..client.replicas.outcome import Apart, Replicated, acked, record_batch
from ..client.replicas.postgres import replicate as postgres
from ..client.replicas.postgres.location import PostgresReplicas
from ..client.replicas.spec import TableSpec
from ..client.replicas.standing import Log
from ..client.replicas.status import ReplicaStatus, replica_of_table
from ..project.database import Database
from ..project.keys import ROWS, TABLE, URI, identifier
from ..spark.replicas.location import DeltaReplicas, IcebergReplicas
from .names import Target, replica_key, source_key
from .verify import apart_check, check_key, recorded_check, recorded_metadata, repair_job_name

if TYPE_CHECKING:
    from ..spark import SparkBatch

_KINDS = {DeltaReplicas: "deltalake", IcebergReplicas: "iceberg", PostgresReplicas: "postgres"}


def replica_assets(
    database: Database,
    name: str,
    queue: str,
    tables: Sequence[TableSpec],
    target: Target,
    group_name: str,
    lease_ttl: timedelta,
    verify_cron: str | None,
) -> dg.AssetsDefinition:
    """Returns the assets of the replicas."""
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
                if found.copying is not None:
                    metadata = {"pgque/copying": found.copying}
                    context.log_event(dg.AssetObservation(key.asset_key, metadata=metadata))
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
    # Imported late, because it loads Spark.
    from ..spark.replicas.replicate import replicate

    return replicate(batch, tables, target, log)


def _place(target: Target, table: TableSpec) -> dict[str, str]:
    """Returns the location of a replica as metadata, before its first batch reports it."""
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
