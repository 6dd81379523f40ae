"""Applies a batch of changes to the replicas of tables, and copies tables where that is needed.

A copy is exact without a lock: its rows are those of one snapshot, and from then on the changes of
transactions that the snapshot contains are left out. The snapshot is remembered in the transaction
of the batch's ack, so it counts only if the attempt that copied is the one that was acked.

Whatever the triggers do not report is answered by another copy: a table that has other columns,
keys, partitions or files than at its last copy, that was truncated, or whose triggers were mended.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from ...client.errors import InvalidArgument, MalformedPayload
from ...client.operation import Call
from ...client.session import Session
from ...client.source_tables import COPY, SourceTable, capture, captured_tables
from ..batch import DRIVER_SIDE_EVENTS, SparkBatch, attempt_of
from .delta import DeltaReplica
from .net_changes import CHANGE_COLUMNS, REDELIVERED, TRUNCATE, net_changes
from .source import Snapshot, is_after, rows_at

Log = Callable[[str], object]


@dataclass(frozen=True)
class Replicated:
    """What a batch did to a replica.

    Attributes:
        source: the table.
        location: where the replica is.
        version: its version after the batch; None if nothing was stored.
        rows: how many rows were copied, or how many keys changed.
        reason: why the table was copied; None if changes were applied.
    """

    source: SourceTable
    location: str
    version: int | None
    rows: int
    reason: str | None


@dataclass(frozen=True)
class _Copied:
    """A table at its last copy."""

    transactions: str
    shape: str


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
    session = batch.claim.session
    sources = [SourceTable.find(session, name) for name in tables]
    if len({source.name for source in sources}) < len(sources):
        raise InvalidArgument(
            f"two of the tables are one: {', '.join(source.name for source in sources)}",
            "Name each once.",
        )
    problems = captured_tables(session, batch.queue)
    copied = _copies(session, batch.queue, batch.consumer)
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
        _check_known(batch, set(kinds) - {source.name for source in sources}, set(problems))
        for source in sources:
            state = copied.get(source.name)
            mine = events.where(f.col("ev_extra1") == source.name)
            replica = DeltaReplica(base_dir, source, storage_options)
            if source.name not in problems:
                raise InvalidArgument(
                    f"table {source.name} is not captured into queue {batch.queue}",
                    f"Capture it, as the table's owner: select pgque.capture('{source.name}', "
                    f"'{batch.queue}'); it is copied again after that.",
                )
            reason = _reason(state, source, problems[source.name])
            if state is not None and reason is None:
                stored = replica.state()
                if stored is None or stored.copied != state.transactions:
                    # For example by an attempt that died between its copy and its ack.
                    reason = "the replica holds another copy than the one that was acked"
            if state is not None and reason is None:
                mine = mine.where(is_after(state.transactions))
                if REDELIVERED in kinds.get(source.name, set()):
                    reason = "changes were delivered again, after later ones"
                elif kinds.get(source.name, set()) & {COPY, TRUNCATE}:
                    reason = _event_reason(mine)
            if state is None or reason is not None:
                log(f"copying {source.name}: {reason}")
                yield _copy(batch, source, replica, str(reason), problems[source.name])
            elif source.name in kinds:
                with _advised(source):
                    changes = net_changes(mine, source)
                    version, rows = replica.merge(batch, changes, state.transactions)
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


def _reason(state: _Copied | None, source: SourceTable, problem: str | None) -> str | None:
    """Returns why a table must be copied, whatever its events are."""
    if state is None:
        return "it is new, or the consumer has passed over events"
    if problem is not None:
        return f"changes may be missing, because {problem}"
    if state.shape != source.shape:
        return "its columns, key, partitions or files changed in a way that triggers do not report"
    return None


def _event_reason(events: DataFrame) -> str | None:
    """Returns why the events of a table, without those in its last copy, demand another one."""
    found = {row.ev_type for row in events.select("ev_type").distinct().collect()}
    if TRUNCATE in found:
        return "it was truncated"
    return "somebody asked for it" if COPY in found else None


def _copy(
    batch: SparkBatch, source: SourceTable, replica: DeltaReplica, reason: str, problem: str | None
) -> Replicated:
    """Copies a table in a snapshot that was taken after its shape was seen."""
    session, attempt = batch.claim.session, attempt_of(batch)
    if problem is not None:
        capture(session, batch.queue, source.name)
        source = SourceTable.find(session, source.name)
    with Snapshot.taken(attempt.url) as snapshot:
        rows = rows_at(batch.spark, session, attempt.address, source, snapshot)

        def check() -> None:
            # A table that is rewritten or truncated shows no rows to a snapshot from before.
            if SourceTable.find(session, source.name).shape != source.shape:
                raise InvalidArgument(
                    f"table {source.name} was altered or truncated while it was copied",
                    "Run the batch again: it copies the table as it is then.",
                )

        batch.claim.before_publishing(check)
        version, count = replica.overwrite(batch, rows, snapshot.transactions)
    batch.before_ack(
        lambda connection: connection.execute(
            "select pgque.set_replicated(%s, %s, %s, %s::pg_snapshot, %s)",
            (batch.queue, batch.consumer, source.name, snapshot.transactions, source.shape),
        )
    )
    return Replicated(source, replica.location, version, count, reason)


def _check_known(batch: SparkBatch, unknown: set[str], captured: set[str]) -> None:
    """Refuses a batch with changes of a table that is captured and not replicated."""
    if lost := sorted(unknown & captured):
        raise InvalidArgument(
            f"batch {batch.batch_id} of {batch.queue} has changes of {', '.join(lost)}, which is "
            "captured and not among the tables to replicate",
            f"Add it to the tables, or end its capture: select pgque.uncapture('{lost[0]}', "
            f"'{batch.queue}');",
        )


def _copies(session: Session, queue: str, consumer: str) -> dict[str, _Copied]:
    return session.run(
        Call(
            "select table_name, copied::text, shape from pgque.replicated_tables(%s, %s)",
            (queue, consumer),
            lambda rows: {name: _Copied(copied, shape) for name, copied, shape in rows},
        )
    )
