"""Applies a batch of changes to the replicas of tables in the lake, and copies tables.

`client/replicas/standing.py` says which are copied, and why a copy is exact.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from ...client.errors import PgqueError, passes
from ...client.replicas.apart import Apart, BatchTables
from ...client.replicas.deletes import HARD
from ...client.replicas.known_tables import check_known
from ...client.replicas.snapshot import Snapshot
from ...client.replicas.standing import (
    REDELIVERED,
    TRUNCATED,
    Copied,
    Log,
    Replicated,
    Standing,
    acked,
    remember,
)
from ...client.table_spec import TableSpec
from ..batch import DRIVER_SIDE_EVENTS, SparkBatch, attempt_of
from ..cluster.executor_errors import clear_executor_errors
from ..reading import arrow
from ..sinks.files.storage import StorageFailed
from ..sinks.publication import BatchIdentity
from .formats import owner_of, replica_of
from .lake import LakeReplica
from .output import ReplicaState
from .source import CHANGE_COLUMNS, is_after, is_for, late_changes, net_changes, rows_at
from .target import LakeReplicas


def replicate(
    batch: SparkBatch,
    specs: Sequence[str | TableSpec],
    target: LakeReplicas,
    log: Log = print,
) -> Iterator[Replicated | Apart]:
    """Applies a batch to the replicas of tables, one after another.

    Args:
        batch: a batch of the queue into which the tables are captured.
        specs: the names of the tables, or what of them is replicated.
        target: where the replicas are.
        log: is told about copies, and about tables that stand apart.

    Yields:
        What happened to each table, when it is stored; at the end, those that stand apart.

    Raises:
        InvalidArgument: if there are changes of another table.
        Exception: what is wrong with the first table, if something is with all, and no value is
            the cause.
    """
    claim = acked(batch.claim)
    tables = BatchTables(claim, specs, log)
    events = batch.events(CHANGE_COLUMNS).where(is_for(claim.consumer))
    if batch.event_count <= DRIVER_SIDE_EVENTS:
        # One task sorts so few faster than Spark starts as many as its shuffles have.
        events = events.coalesce(1)
    events = events.cache()
    try:
        kinds: dict[str, set[str]] = {}
        for row in events.select("ev_extra1", _kind()).distinct().collect():
            kinds.setdefault(row.ev_extra1, set()).add(row.kind)
        check_known(claim, tables.specs.keys(), set(kinds))
        for name in tables.tried:
            done = None
            with tables.alone(name), clear_executor_errors():
                mine = events.where(f.col("ev_extra1") == name)
                done = _replicate_one(
                    batch, tables, name, target, mine, kinds.get(name, set()), log
                )
            if done is not None:
                yield done
        yield from tables.settle()
    finally:
        events.unpersist()


def _replicate_one(
    batch: SparkBatch,
    tables: BatchTables,
    name: str,
    target: LakeReplicas,
    events: DataFrame,
    kinds: set[str],
    log: Log,
) -> Replicated:
    """Applies the events of one table, whose kinds are given, or copies it."""
    claim, standing = acked(batch.claim), tables.standing(name)
    source, copied = standing.source, standing.copied
    owner = owner_of(claim.queue, claim.consumer)
    replica = replica_of(target, source, owner, claim.session)
    with replica.sink.errors(BatchIdentity.of(claim)):
        state = replica.state()
        foreign_version = None if state else replica.foreign_version()
    noted_tick = tables.noted_tick(name)
    if noted_tick is not None and state is not None and standing.why_unknown is None:
        # An attempt whose ack is missing may have applied some of it, and append adds rows once.
        missed = tables.missed(source, max(noted_tick, state.tick_id))
        address = attempt_of(batch).address
        earlier = arrow.read_slices(batch.spark, address, missed, CHANGE_COLUMNS)
        events = events.unionByName(earlier.where(is_for(claim.consumer)))
        kinds = {row.kind for row in events.select(_kind()).distinct().collect()}
    if copied is not None:
        events = events.where(is_after(copied.transactions))
    stored = state.copied if state else None
    reason = standing.copy_reason(stored, kinds, partial(_kinds, events), foreign_version)
    if copied is None or reason is not None:
        log(f"copying {source.name}: {reason}")
        return _copy(batch, standing, replica, str(reason), state, log)
    if not kinds:
        return Replicated(source, replica.location, None, 0, None)
    if noted_tick is None:
        changes = net_changes(events, source)
    else:
        changes = late_changes(events, source, replica.deletes)
    version, rows, added = replica.merge(batch, changes, copied.transactions)
    return Replicated(source, replica.location, version, rows, None, added=added)


@contextmanager
def _may_be_unreadable(replica: LakeReplica[Any], log: Log) -> Iterator[None]:
    """Lets a replica be written as a whole that cannot be compared, unless it keeps rows."""
    try:
        with clear_executor_errors():
            yield
    except PgqueError:
        raise
    except Exception as error:  # Spark's, for example for a file that is gone.
        line = next(iter(str(error).splitlines()), type(error).__name__)
        told = f"{replica.source.name} cannot be compared with {replica.location}: {line}"
        if replica.deletes != HARD:
            raise StorageFailed(
                told,
                "Run the batch again. Only if files of the replica are gone, and so the rows that "
                "only they kept: move it away, and the next batch makes it anew.",
                passing=passes(error),
            ) from error
        log(f"{told}. The replica is written as a whole")


def _kind() -> Column:
    kind = f.when(f.col("ev_retry").isNull(), f.col("ev_type")).otherwise(REDELIVERED)
    return kind.alias("kind")


def _kinds(events: DataFrame) -> set[str]:
    return {row.ev_type for row in events.select("ev_type").distinct().collect()}


def _copy(
    batch: SparkBatch,
    standing: Standing,
    replica: LakeReplica[Any],
    reason: str,
    state: ReplicaState | None,
    log: Log,
) -> Replicated:
    """Copies a table in a snapshot that was taken after its shape was seen."""
    claim, attempt = acked(batch.claim), attempt_of(batch)
    standing, session = standing.mended(claim.session), claim.session
    source = standing.source
    with Snapshot.of_copy(attempt.url, claim.queue, replica.deletes) as (tick_id, snapshot):
        rows = rows_at(batch.spark, session, attempt.address, source, snapshot)
        claim.before_publishing(partial(standing.check_unchanged, session))
        copied, repaired = snapshot.transactions, None
        # After a TRUNCATE, most rows differ.
        if state is not None and reason != TRUNCATED:
            with _may_be_unreadable(replica, log):
                repaired = replica.repair(batch, state, rows, copied, tick_id)
        version, count, written = repaired or (
            *replica.overwrite(batch, rows, copied, tick_id),
            None,
        )
    remember(claim, source.name, Copied(copied, source.shape))
    return Replicated(source, replica.location, version, count, reason, written)
