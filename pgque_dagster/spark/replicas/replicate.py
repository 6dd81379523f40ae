"""Applies a batch of changes to the replicas of tables in the lake, and copies tables.

`client/replicas/standing.py` says which tables are copied, and why a copy is exact. Large tables
are copied in parts, for a limited time in each run, after the batch is applied to the others.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

from ...client.batch import Batch
from ...client.errors import MalformedPayload, PgqueError, passes
from ...client.models import Slice
from ...client.plans import is_after, of_table, where
from ...client.replicas.batch_tables import BatchTables
from ...client.replicas.capture import COPY, check_deletes
from ...client.replicas.deletes import HARD
from ...client.replicas.events import ROWS, TRUNCATE, after_truncate, read_as
from ...client.replicas.events import kinds as kinds_of
from ...client.replicas.outcome import Apart, Copied, Replicated, acked, remember
from ...client.replicas.parts import rows_of_partitions, share_ends
from ...client.replicas.snapshot import Snapshot
from ...client.replicas.source import SourceTable
from ...client.replicas.spec import TableSpec
from ...client.replicas.standing import Log, Standing
from ..batch import SparkBatch, attempt_of
from ..cluster.executor_errors import clear_executor_errors
from ..reading import arrow
from ..sinks.files.storage import StorageFailed, Unreadable
from .events import CHANGE_COLUMNS, fits_one_task, is_for, read_events
from .formats import replica_of
from .lake import LakeReplica
from .location import LakeReplicas
from .partitions import partition_changes
from .parts import CopyInParts
from .rows import rows_at
from .source import DELETED, late_changes, net_changes
from .stored import ReplicaState


def replicate(
    batch: SparkBatch,
    specs: Sequence[str | TableSpec],
    target: LakeReplicas,
    log: Log = print,
) -> Iterator[Replicated | Apart]:
    """Applies a batch to the replicas of tables, one after another.

    Yields:
        The outcome for each table, when it is stored; at the end, the tables that are set apart.

    Raises:
        Exception: the first table's error, if all tables fail and no value is the cause.
    """
    claim = acked(batch.claim)
    check_deletes(claim.session, claim.queue, target.deletes)
    tables = BatchTables(claim, specs, log, {"nulls", "values", "drops", "renames", "types"})
    yield from _Apply(batch, claim, tables, target, log).run()
    yield from tables.settle()


@dataclass(frozen=True)
class _Copy:
    """A copy to make: its table, its replica, the reason, and the replica's state.

    It may replace another program's rows of the version `foreign`. A whole copy has no `parts`.
    """

    standing: Standing
    replica: LakeReplica[Any]
    reason: str
    state: ReplicaState | None
    foreign: int | None
    parts: CopyInParts | None = None


class _Apply:
    """Applies a batch to one table after another.

    Args:
        claim: the same batch, for the ack.
    """

    def __init__(
        self, batch: SparkBatch, claim: Batch, tables: BatchTables, target: LakeReplicas, log: Log
    ) -> None:
        self._batch, self._claim, self._tables = batch, claim, tables
        self._target, self._log = target, log
        self._attempt = attempt_of(batch)
        self._in_parts: dict[str, _Copy] = {}

    def run(self) -> Iterator[Replicated]:
        """Yields the outcome for each table that does not fail, when it is stored."""
        tables = self._tables
        events = where(self._batch.plan.slices, is_for(self._batch.consumer))
        kinds = kinds_of(self._claim.session, events)
        tables.pass_over(kinds.keys())
        for name in tables.tried:
            done = None
            with tables.alone(name), clear_executor_errors():
                done = self._apply(name, of_table(events, name), kinds.get(name, set()))
            if done is not None:
                yield done
        deadline = share_ends()
        for name, copy in self._in_parts.items():
            done = None
            with tables.alone(name), clear_executor_errors():
                done = self._copy_in_parts(name, copy, deadline)
            if done is not None:
                yield done

    def _apply(self, name: str, events: Sequence[Slice], kinds: set[str]) -> Replicated | None:
        """Applies the events of one table, whose kinds are given, or copies it.

        Returns None if it is to be copied in parts.
        """
        claim, standing = self._claim, self._tables.standing(name)
        source, copied = standing.source, standing.copied
        replica = replica_of(self._target, source, claim.queue, claim.consumer, claim.session)
        is_new = True
        with replica.sink.errors(claim):
            if copied and copied.shape != source.shape and standing.why_unknown is None:
                is_new = replica.alter_columns(self._batch, standing.altered, copied.shape)
            state = replica.state()
            foreign = None if state else replica.foreign_version()
        noted_tick = self._tables.noted_tick(name)
        if noted_tick is not None and state is not None and standing.why_unknown is None:
            # An attempt without an ack may have applied part of it, and append must add each row
            # only once.
            missed = self._tables.missed(source, max(noted_tick, state.tick_id))
            events = (*events, *where(missed, is_for(claim.consumer)))
            kinds = kinds_of(claim.session, events).get(name, set())
        if copied is not None:
            events = where(events, is_after(copied.transactions))
        later = set()
        if standing.needs_later(kinds):
            later = kinds_of(claim.session, events).get(name, set())
        is_truncated = TRUNCATE in later and COPY not in later
        if is_truncated:
            events = after_truncate(claim.session, events)
            later = {TRUNCATE, *kinds_of(claim.session, events).get(name, set())}
        stored = state.copied if state else None
        reason = standing.copy_reason(stored, kinds, later, foreign)
        readings = {} if reason else standing.altered.readings(claim.session, events)
        reason = reason or self._tables.why_altered(standing, readings, later, events)
        if not is_new:
            reason = reason or standing.altered.reason
        if copied is None or reason is not None:
            copy = _Copy(standing.mended(claim.session), replica, str(reason), state, foreign)
            if is_new and (done := self._follow_partitions(copy, events)):
                return done
            # A lock on the table blocks reading its size.
            if self._tables.copies_in_parts(source):
                self._in_parts[name] = copy
                return None
            return self._copy(copy)
        done = Replicated(source, replica.location, None, 0, None)
        if kinds:
            events = read_as(events, readings or {})
            done = self._follow(source, replica, copied, events, is_truncated)
        return replace(done, doubt=self._tables.note_shape(standing, later))

    def _follow(
        self,
        source: SourceTable,
        replica: LakeReplica[Any],
        copied: Copied,
        events: Sequence[Slice],
        is_truncated: bool,
    ) -> Replicated:
        """Applies events to a replica; those after a TRUNCATE have all rows of the table."""
        batch, location = self._batch, replica.location
        if self._tables.noted_tick(source.name) is None:
            changes = net_changes(read_events(batch, events), source, fits_one_task(batch))
        else:
            address = self._attempt.address
            found = arrow.read_slices(batch.spark, address, events, CHANGE_COLUMNS)
            changes = late_changes(found, source, replica.deletes)
        if not is_truncated:
            version, rows, added = replica.merge(batch, changes, copied.transactions)
            return Replicated(source, location, version, rows, None, added=added)
        there, tick_id = changes.where(f"not `{DELETED}`").drop(DELETED), self._claim.lease.tick_id
        version, rows = replica.overwrite(batch, there, copied.transactions, tick_id, None)
        return Replicated(source, location, version, rows, None, is_truncated=True)

    def _follow_partitions(self, copy: _Copy, events: Sequence[Slice]) -> Replicated | None:
        """Applies added and removed partitions; returns None if the table must be copied."""
        claim, replica, standing = self._claim, copy.replica, copy.standing
        source, copied, partitions = standing.source, standing.copied, standing.altered.partitions
        if not (partitions and copied and copy.state and standing.follows_partitions(copy.reason)):
            return None
        with Snapshot.of_tick(self._attempt.url, claim.queue) as (tick_id, snapshot):
            later = where(self._tables.until(source.name, tick_id), is_for(claim.consumer))
            events = (*events, *where(later, is_after(copied.transactions)))
            new = rows_of_partitions(claim.session, source, partitions.new)
            if new is None or kinds_of(claim.session, events).get(source.name, set()) - ROWS:
                return None
            claim.before_publishing(partial(standing.check_unchanged, claim.session))
            stored = replica.live_rows(self._batch.spark, copy.state.version)
            found = (self._batch, source, replica.deletes, stored, events, new, snapshot)
            now, done = snapshot.transactions, None
            # A value of a deleted row may not fit. A copy does not read it.
            with (
                suppress(MalformedPayload),
                clear_executor_errors(),
                partition_changes(*found) as changes,
            ):
                done = replica.correct(self._batch, changes, now, tick_id, copy.state)
        if done is not None:
            self._log(f"{source.name} follows: {partitions.told}")
            remember(claim, source.name, Copied(now, source.shape), is_copy=False)
        return done

    def _copy(self, copy: _Copy) -> Replicated:
        """Copies a table in a snapshot that was taken after its shape was read."""
        claim, source, address = self._claim, copy.standing.source, self._attempt.address
        self._log(f"copying {source.name}: {copy.reason}")
        with Snapshot.of_copy(self._attempt.url, claim.queue, copy.replica.deletes) as (
            tick_id,
            snapshot,
        ):
            rows = rows_at(self._batch.spark, claim.session, address, source, snapshot)
            return self._publish(copy, rows, snapshot.transactions, tick_id)

    def _copy_in_parts(self, name: str, copy: _Copy, deadline: float) -> Replicated | None:
        """Continues the copy of a table. Returns None if parts are still missing."""
        batch, claim, replica = self._batch, self._claim, copy.replica
        with replica.attempt(batch, "", replica.columns()) as output:
            output.foreign, table = copy.foreign, output.begin()
            source, noted = copy.standing.source, self._tables.copying_tick(name)
            parts = CopyInParts(batch, claim, output, source, copy.reason, noted, self._log)
            try:
                output.check_foreign(table)
                is_complete = parts.read(deadline)
            finally:
                self._tables.note_copying(name, parts.tick_id, parts.progress)
            if not is_complete:
                return None
            try:
                tick_id, copied, rows = parts.rows()
                copy = replace(copy, reason=parts.reason, foreign=output.foreign, parts=parts)
                done = self._publish(copy, rows, copied, tick_id)
            except Exception:
                parts.check_files()
                raise
            finally:
                parts.close()
        self._tables.end_copying(name)
        return done

    def _publish(
        self, copy: _Copy, rows: DataFrame, copied: str, tick_id: int | None
    ) -> Replicated:
        """Publishes the rows that a table has in a snapshot."""
        batch, claim, replica, source = self._batch, self._claim, copy.replica, copy.standing.source
        claim.before_publishing(partial(copy.standing.check_unchanged, claim.session))
        repaired = None
        if copy.state is not None:
            with _may_be_unreadable(copy, self._log):
                repaired = replica.repair(batch, copy.state, rows, copied, tick_id)
        adopted = None
        if repaired is None and copy.parts is not None:
            adopted = replica.adopt(batch, copy.parts, copied, copy.foreign)
        version, count, written = repaired or (
            *(adopted or replica.overwrite(batch, rows, copied, tick_id, copy.foreign)),
            None,
        )
        remember(claim, source.name, Copied(copied, source.shape))
        return Replicated(source, replica.location, version, count, copy.reason, written)


@contextmanager
def _may_be_unreadable(copy: _Copy, log: Log) -> Iterator[None]:
    """Allows a full write of a replica that cannot be compared, unless it keeps rows."""
    replica = copy.replica
    try:
        with clear_executor_errors():
            yield
    except Exception as error:  # Spark's, for example for a file that is gone.
        if isinstance(error, PgqueError) and not isinstance(error, Unreadable):
            raise
        if copy.parts is not None:
            copy.parts.check_files()
        line = next(iter(str(error).splitlines()), type(error).__name__)
        told = f"{replica.source.name} cannot be compared with {replica.location}: {line}"
        if replica.deletes != HARD:
            raise StorageFailed(
                told,
                "Run the batch again. Only if files of the replica are gone, and so the rows that "
                "only they kept: move it away, and the next batch creates it again.",
                passing=passes(error),
            ) from error
        log(f"{told}. The replica is rewritten completely")
