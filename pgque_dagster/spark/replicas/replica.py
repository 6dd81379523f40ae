"""Applies a batch of changes to the replicas of tables in Delta, and copies tables.

`client/replicas/standing.py` says which are copied, and why a copy is exact.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from ...client.errors import MalformedPayload
from ...client.replicas.snapshot import Snapshot
from ...client.replicas.standing import (
    REDELIVERED,
    REMEMBER,
    Log,
    Replicated,
    Standing,
    check_known,
    find_standings,
)
from ...client.source_tables import SourceTable
from ..batch import DRIVER_SIDE_EVENTS, SparkBatch, attempt_of
from .delta import DeltaReplica
from .net_changes import CHANGE_COLUMNS, net_changes
from .source import is_after, rows_at


def replicate(
    batch: SparkBatch,
    tables: Sequence[str],
    base_dir: str | Path,
    storage_options: dict[str, str] | None = None,
    log: Log = print,
) -> Iterator[Replicated]:
    """Applies a batch to the replicas of tables, one after another.

    Args:
        batch: a batch of the queue into which the tables are captured.
        tables: the names of the tables.
        base_dir: as for `DeltaReplica`.
        storage_options: as for `DeltaReplica`.
        log: is told about copies.

    Yields:
        What happened to each table, when it is stored.

    Raises:
        InvalidArgument: if a table cannot be replicated, or there are changes of another one.
        MalformedPayload: if a row has a value that the replica cannot hold.
    """
    standings = find_standings(batch.claim.session, batch.queue, batch.consumer, tables)
    events = batch.events(CHANGE_COLUMNS)
    if batch.event_count <= DRIVER_SIDE_EVENTS:
        # One task sorts so few faster than Spark starts as many as its shuffles have.
        events = events.coalesce(1)
    events = events.cache()
    try:
        kinds: dict[str, set[str]] = {}
        kind = f.when(f.col("ev_retry").isNull(), f.col("ev_type")).otherwise(REDELIVERED)
        for row in events.select("ev_extra1", kind.alias("kind")).distinct().collect():
            kinds.setdefault(row.ev_extra1, set()).add(row.kind)
        check_known(batch.claim.session, batch.queue, batch.batch_id, standings, set(kinds))
        for standing in standings:
            source, copied = standing.source, standing.copied
            mine = events.where(f.col("ev_extra1") == source.name)
            if copied is not None:
                mine = mine.where(is_after(copied.transactions))
            replica = DeltaReplica(base_dir, source, storage_options)
            reason = standing.copy_reason(
                replica.copied, kinds.get(source.name, set()), partial(_kinds, mine)
            )
            if copied is None or reason is not None:
                log(f"copying {source.name}: {reason}")
                yield _copy(batch, standing, replica, str(reason))
            elif source.name in kinds:
                with _advised(source):
                    changes = net_changes(mine, source)
                    version, rows = replica.merge(batch, changes, copied.transactions)
                yield Replicated(source, replica.location, version, rows, None)
            else:
                yield Replicated(source, replica.location, None, 0, None)
    finally:
        events.unpersist()


@contextmanager
def _advised(source: SourceTable) -> Iterator[None]:
    """Says what to do about a change that the replica cannot hold."""
    try:
        yield
    except MalformedPayload as error:
        raise MalformedPayload(
            f"a change of {source.name} does not fit its replica: {error.args[0]}",
            "Delta holds no infinity and no year beyond 9999. Change such rows, and have the table "
            "copied again by the job that copies. That also helps if the table was altered.",
        ) from error


def _kinds(events: DataFrame) -> set[str]:
    return {row.ev_type for row in events.select("ev_type").distinct().collect()}


def _copy(batch: SparkBatch, standing: Standing, replica: DeltaReplica, reason: str) -> Replicated:
    """Copies a table in a snapshot that was taken after its shape was seen."""
    session, attempt = batch.claim.session, attempt_of(batch)
    standing = standing.mended(session)
    source = standing.source
    with Snapshot.taken(attempt.url) as snapshot:
        rows = rows_at(batch.spark, session, attempt.address, source, snapshot)
        batch.claim.before_publishing(partial(standing.check_unchanged, session))
        version, count = replica.overwrite(batch, rows, snapshot.transactions)
    copied = (batch.queue, batch.consumer, source.name, snapshot.transactions, source.shape)
    batch.before_ack(lambda connection: connection.execute(REMEMBER, copied))
    return Replicated(source, replica.location, version, count, reason)
