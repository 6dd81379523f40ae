"""Compares a replica with its table at one tick.

A tick is made with the snapshot of a transaction, and the table's rows are read in this snapshot,
without a lock. The replica has the changes up to an earlier tick; the changes between the two are
applied to its rows here, and then both must have the same rows.
"""

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from ...client.errors import MalformedPayload
from ...client.operation import Call
from ...client.plans import is_after, of_table, tick_range_plan, where
from ...client.replicas.events import kinds
from ...client.replicas.key_parts import KeyPart
from ...client.replicas.snapshot import Snapshot
from ...client.replicas.source import SourceTable
from ...client.replicas.spec import TableSpec
from ...client.replicas.standing import find_standings
from ...client.replicas.verify import ALTERED, REPLICA_GONE, Verification, last_acked_tick
from ...client.session import Session
from ..address import DatabaseAddress
from ..cluster.executor_errors import clear_executor_errors
from ..options import DEFAULT_SLICES
from ..reading import arrow
from ..reading.table import SIZE, row_ranges
from .compare import compare
from .events import CHANGE_COLUMNS, is_for
from .formats import replica_of
from .location import LakeReplicas
from .rows import rows_at
from .source import DELETED, net_changes


def verify(
    spark: SparkSession,
    session: Session,
    queue: str,
    consumer: str,
    table: str | TableSpec,
    target: LakeReplicas,
    address: DatabaseAddress,
    part: KeyPart | None = None,
) -> Verification:
    """Compares a replica, or a part, with its table at a new tick.

    Raises:
        InvalidArgument: if the table or the replica does not exist.
        TransactionOutdated: if other tickers were faster each time.
    """
    standing = find_standings(session, queue, consumer).of(table)
    source = standing.source
    if why_not := standing.why_unknown or standing.apart:
        return Verification(source.name, None, None, why_not=why_not)
    acked = last_acked_tick(session, queue, consumer)
    replica = replica_of(target, source, queue, consumer, session)
    state = replica.state()
    if state is None:
        return Verification(source.name, acked, None, why_not=REPLICA_GONE)
    from_tick = max(acked, state.tick_id)
    with Snapshot.of_tick(session.url, queue) as (tick_id, snapshot):
        plan = session.run(tick_range_plan(queue, from_tick, tick_id, DEFAULT_SLICES))
        slices = where(of_table(plan.slices, source.name), is_for(consumer))
        slices = where(slices, is_after(state.copied))
        if why := standing.why_copied(kinds(session, slices).get(source.name, set())):
            return Verification(source.name, tick_id, state.version, why_not=why)
        events = arrow.read_slices(spark, address, slices, CHANGE_COLUMNS)
        changes = net_changes(events, source).cache()
        try:
            stored = _with_changes(replica.live_rows(spark, state.version), changes, source)
            parts = None
            if part is not None:
                size = session.run(Call(SIZE, (source.name,), lambda rows: rows[0][0]))
                rows_of = part.rows_of(source.name)
                parts = [f"{rows_of}{x.replace(' where ', ' and ')}" for x in row_ranges(size)]
                stored = stored.where(_is_in(part))
            rows = rows_at(spark, session, address, source, snapshot, parts)
            with clear_executor_errors():
                count, differences, examples = compare(rows, stored, source)
        except MalformedPayload as error:
            return Verification(source.name, tick_id, state.version, why_not=str(error))
        finally:
            changes.unpersist()
        if standing.has_changed(session):
            return Verification(source.name, tick_id, state.version, why_not=ALTERED)
    return Verification(source.name, tick_id, state.version, count, differences, examples)


def _is_in(part: KeyPart) -> Column:
    """Returns `KeyPart.condition` as a condition of Spark."""
    text = f.concat_ws(",", *(f.col(f"`{name}`").cast("string") for name in part.columns))
    digits = f.conv(f.substring(f.md5(text), 1, 8), 16, 10)
    return digits.cast("long") % part.of == part.number - 1


def _with_changes(replica: DataFrame, changes: DataFrame, source: SourceTable) -> DataFrame:
    """Returns the rows of a replica after changes that it does not have yet."""
    keys = list(source.key)
    columns = [f.col(f"`{column.name}`") for column in source.columns]
    kept = replica
    if keys:
        kept = replica.join(f.broadcast(changes.select(keys)), keys, "left_anti")
    return kept.select(*columns).unionAll(changes.where(f"not `{DELETED}`").select(*columns))
