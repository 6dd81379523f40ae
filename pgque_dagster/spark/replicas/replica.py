"""Applies a batch of changes to the replicas of tables in the lake, and copies tables.

`client/replicas/standing.py` says which are copied, and why a copy is exact.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from ...client.errors import PgqueError
from ...client.replicas.deletes import HARD
from ...client.replicas.snapshot import Snapshot
from ...client.replicas.standing import (
    REDELIVERED,
    TRUNCATED,
    Copied,
    Log,
    Replicated,
    Standing,
    acked,
    check_known,
    find_standings,
    remember,
)
from ...client.table_spec import TableSpec
from ..batch import DRIVER_SIDE_EVENTS, SparkBatch, attempt_of
from ..cluster.executor_errors import clear_executor_errors
from ..sinks.files.storage import StorageFailed
from .formats import owner_of, replica_of
from .lake import LakeReplica
from .output import ReplicaState
from .source import CHANGE_COLUMNS, is_after, is_for, net_changes, rows_at
from .target import LakeReplicas


def replicate(
    batch: SparkBatch,
    tables: Sequence[str | TableSpec],
    target: LakeReplicas,
    log: Log = print,
) -> Iterator[Replicated]:
    """Applies a batch to the replicas of tables, one after another.

    Args:
        batch: a batch of the queue into which the tables are captured.
        tables: the names of the tables, or what of them is replicated.
        target: where the replicas are.
        log: is told about copies.

    Yields:
        What happened to each table, when it is stored.

    Raises:
        InvalidArgument: if a table cannot be replicated, or there are changes of another one.
        MalformedPayload: if a row has a value that the replica cannot hold.
    """
    claim = acked(batch.claim)
    standings = find_standings(claim.session, claim.queue, claim.consumer, tables)
    events = batch.events(CHANGE_COLUMNS).where(is_for(claim.consumer))
    if batch.event_count <= DRIVER_SIDE_EVENTS:
        # One task sorts so few faster than Spark starts as many as its shuffles have.
        events = events.coalesce(1)
    events = events.cache()
    try:
        kinds: dict[str, set[str]] = {}
        kind = f.when(f.col("ev_retry").isNull(), f.col("ev_type")).otherwise(REDELIVERED)
        for row in events.select("ev_extra1", kind.alias("kind")).distinct().collect():
            kinds.setdefault(row.ev_extra1, set()).add(row.kind)
        check_known(claim, standings, set(kinds))
        owner = owner_of(claim.queue, claim.consumer)
        replicas = [replica_of(target, each.source, owner, claim.session) for each in standings]
        # Whatever is wrong with one of them is found before anything is written.
        states = [replica.state() for replica in replicas]
        for standing, replica, state in zip(standings, replicas, states, strict=True):
            source, copied = standing.source, standing.copied
            mine = events.where(f.col("ev_extra1") == source.name)
            if copied is not None:
                mine = mine.where(is_after(copied.transactions))
            reason = standing.copy_reason(
                state.copied if state else None,
                kinds.get(source.name, set()),
                partial(_kinds, mine),
            )
            if copied is None or reason is not None:
                log(f"copying {source.name}: {reason}")
                yield _copy(batch, standing, replica, str(reason), state, log)
            elif source.name in kinds:
                changes = net_changes(mine, source)
                version, rows, added = replica.merge(batch, changes, copied.transactions)
                yield Replicated(source, replica.location, version, rows, None, added=added)
            else:
                yield Replicated(source, replica.location, None, 0, None)
    finally:
        events.unpersist()


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
            ) from error
        log(f"{told}. The replica is written as a whole")


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
