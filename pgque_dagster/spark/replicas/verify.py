"""Compares a replica with its table at one tick.

A tick is made with the snapshot of a transaction, and the table's rows are read in this snapshot,
without a lock. The replica has the changes up to an earlier tick; those between the two are applied
to its rows here, and then both must have the same rows.
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ...client.errors import MalformedPayload
from ...client.plans import tick_range_plan
from ...client.replicas.snapshot import Snapshot
from ...client.replicas.standing import find_standings
from ...client.replicas.verification import (
    ALTERED,
    REPLICA_GONE,
    Verification,
    last_acked_tick,
)
from ...client.session import Session
from ...client.source_tables import SourceTable
from ...client.table_spec import TableSpec
from ..address import DatabaseAddress
from ..cluster.executor_errors import clear_executor_errors
from ..options import DEFAULT_SLICES
from ..reading import arrow
from .compare import compare
from .formats import replica_of
from .source import CHANGE_COLUMNS, DELETED, is_after, net_changes, rows_at
from .target import LakeReplicas

# Of the changes that wait, which are few compared with the table.
_PARTITIONS = 1


def verify(
    spark: SparkSession,
    session: Session,
    queue: str,
    consumer: str,
    table: str | TableSpec,
    target: LakeReplicas,
    address: DatabaseAddress,
) -> Verification:
    """Compares a replica with its table at a new tick.

    Args:
        spark: the Spark session.
        session: of the table's database.
        queue: the queue of the table's changes.
        consumer: the consumer that replicates it.
        table: the table's name, or what of it is replicated.
        target: where the replica is.
        address: how executors find the database.

    Raises:
        InvalidArgument: if the table or the replica is not there.
        TransactionOutdated: if no tick could be made beside others.
    """
    standing = find_standings(session, queue, consumer).of(table)
    source = standing.source
    if why_not := standing.why_unknown or standing.apart:
        return Verification(source.name, None, None, why_not=why_not)
    acked = last_acked_tick(session, queue, consumer)
    replica = replica_of(target, source, queue, session)
    state = replica.state()
    if state is None:
        return Verification(source.name, acked, None, why_not=REPLICA_GONE)
    from_tick = max(acked, state.tick_id)
    with Snapshot.of_tick(session.url, queue) as (tick_id, snapshot):
        plan = session.run(tick_range_plan(queue, from_tick, tick_id, DEFAULT_SLICES))
        events = (
            arrow.read_slices(spark, address, plan.slices, CHANGE_COLUMNS)
            .where(f.col("ev_extra1") == source.name)
            .where(is_after(state.copied))
            .coalesce(_PARTITIONS)
            .cache()
        )
        try:
            kinds = {row.ev_type for row in events.select("ev_type").distinct().collect()}
            if why := standing.why_copied(kinds):
                return Verification(source.name, tick_id, state.version, why_not=why)
            stored = _with_changes(replica.live_rows(spark, state.version), events, source)
            rows = rows_at(spark, session, address, source, snapshot)
            with clear_executor_errors():
                count, differences, examples = compare(rows, stored, source)
        except MalformedPayload as error:
            return Verification(source.name, tick_id, state.version, why_not=str(error))
        finally:
            events.unpersist()
        if standing.has_changed(session):
            return Verification(source.name, tick_id, state.version, why_not=ALTERED)
    return Verification(source.name, tick_id, state.version, count, differences, examples)


def _with_changes(replica: DataFrame, events: DataFrame, source: SourceTable) -> DataFrame:
    """Returns the rows of a replica after changes that it does not have yet."""
    changes = net_changes(events, source).cache()
    keys = list(source.key)
    columns = [f.col(f"`{column.name}`") for column in source.columns]
    kept = replica
    if keys:
        kept = replica.join(f.broadcast(changes.select(keys)), keys, "left_anti")
    return kept.select(*columns).unionAll(changes.where(f"not `{DELETED}`").select(*columns))
