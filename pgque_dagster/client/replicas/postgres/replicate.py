"""Replicas of tables in PostgreSQL: a batch is applied to all of them in one transaction.

Afterwards, parts of large tables are copied, and a copy that is complete is published in another
transaction, which also records that the table no longer lacks the batch.

The transaction also records the batch (`last_batch.py`) and, with a copy, its snapshot and the
table's shape. So an attempt that finds the batch recorded changes nothing; it only makes the ack
record what it found. The lock on the record keeps a stale attempt from publishing: the lease is
checked under the lock, and a later attempt waits for it, or ends the session that holds it.
"""

import json
from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import psycopg
from psycopg import sql

from ...batch import Batch, read_plan
from ...errors import ConnectionFailed, TargetRefused, passes, translated
from ...last_batch import Applied, LastBatch, Span
from ...models import Slice
from ...plans import is_after, of_table, where
from ...read_batch import ReadBatch
from ...rights import Connection
from ..batch_tables import BatchTables
from ..capture import check_deletes
from ..deletes import HARD, SOFT
from ..events import ROWS, TRUNCATE
from ..events import kinds as kinds_of
from ..outcome import (
    Apart,
    Copied,
    Replicated,
    acked,
    forget,
    remember,
    remember_stored,
    stored_ticks,
)
from ..parts import rows_of_partitions, share_ends
from ..snapshot import Snapshot
from ..source import Readings, SourceTable
from ..spec import TableSpec
from ..standing import Log, Standing
from .location import PostgresReplicas, connected_target, replica_of
from .parts import CopyInParts, StagedCopy
from .staging import pipe, stage_events, stage_rows, staged_kinds
from .table import CHANGES, KEYS, TargetTable, create_stages, refusing


def replicate(
    claim: ReadBatch,
    specs: Sequence[str | TableSpec],
    target: PostgresReplicas,
    log: Log = print,
) -> list[Replicated | Apart]:
    """Applies a batch to the replicas of tables, in one transaction, and continues large copies.

    A table that fails is rolled back to its savepoint. The transaction records which tables miss
    the batch, and from which tick.

    Returns:
        The outcome for each table, followed by the tables that are set apart.

    Raises:
        InvalidArgument: if two replicas would be the same table.
        TargetOutOfStep: if the replicas are from another incarnation of the database.
        LeaseLost: if another owner took the batch over.
        Exception: the first table's error, if all tables fail and no value is the cause.
    """
    batch = acked(claim)
    check_deletes(batch.session, batch.queue, target.deletes)
    # A default would also fill the rows that the source no longer has.
    fills = {"values"} if target.deletes == HARD else set()
    tables = BatchTables(batch, specs, log, {"nulls", "drops", "renames", "types", *fills})
    span = Span.of(batch.session, batch.queue, batch.lease)
    stored = stored_ticks(batch.session, batch.queue, batch.consumer)
    with connected_target(batch.session, target) as there:
        ledger = LastBatch(there, batch.queue, batch.consumer)
        with there.transaction():
            last = ledger.take(batch.renew)
            # No later attempt has published, and none can while the lock is held.
            batch.renew()
            if last.incarnation not in (None, span.incarnation):
                raise ledger.of_another_life(span, last)
            # Batches without events move the consumer but not the target.
            follows = last.tick_id is not None and (
                last.precedes(span) or stored == (last.tick_id, span.prev_tick_id)
            )
            apply = _Apply(batch, there, tables, target, log, last, last.is_(span), follows)
            done = apply.run()
            lacking = {each.name: (each.tick_id, each.reason) for each in tables.apart()}
            ledger.record(span, json.dumps(lacking) if lacking else None)
            batch.run_checks()
            batch.renew()
        deadline = share_ends()
        for name in apply.in_parts:
            with tables.alone(name):
                done += apply.go_on(name, deadline, ledger, span)
    remember_stored(batch)
    return [*done, *tables.settle()]


@dataclass
class _Work:
    """A table, its replica, its events, and the reason for a copy, if it is copied.

    `missed` are events before the batch; `events` are all that the last copy lacks. `later` has the
    types of the events from a TRUNCATE on.
    """

    standing: Standing
    table: TargetTable
    missed: tuple[Slice, ...] = ()
    events: tuple[Slice, ...] = ()
    readings: Readings | None = None
    reason: str | None = None
    is_of_partitions: bool = False
    later: Set[str] = frozenset()


class _Apply:
    """Applies a batch in a transaction of the target.

    Args:
        last: the last batch that the target has.
        has_batch: whether that is this batch.
        follows: whether the target has everything before the batch and nothing after.

    Attributes:
        in_parts: the copies in parts, by table.
    """

    def __init__(
        self,
        batch: Batch,
        there: Connection,
        tables: BatchTables,
        target: PostgresReplicas,
        log: Log,
        last: Applied,
        has_batch: bool,
        follows: bool,
    ) -> None:
        self._batch, self._there, self._tables = batch, there, tables
        self._target, self._log = target, log
        self._has_batch, self._follows = has_batch, follows
        # The tables that lack a part of what the target has, each with the tick at which it ends.
        self._lacking: dict[str, tuple[int, str]] = json.loads(last.failed or "{}")
        self._works: dict[str, _Work] = {}
        self.in_parts: dict[str, CopyInParts] = {}
        if self._has_batch:
            tables.stored = tables.specs.keys() - self._lacking.keys()

    def run(self) -> list[Replicated]:
        """Applies the batch to each table, or copies the table. Returns the outcomes."""
        batch, session, tables = self._batch, self._batch.session, self._tables
        for name in tables.tried:
            with self._alone(name):
                self._works[name] = self._work(tables.standing(name))
        slices = read_plan(batch, 1).slices
        for name, work in self._works.items():
            with self._alone(name):
                self._find_readings(work, of_table(slices, name))
        sources = [each.standing.source for each in self._works.values()]
        self._target.check_places(sources)
        create_stages(self._there)
        self._stage(slices, sources)
        for name, work in self._works.items():
            with self._alone(name):
                missed, source = work.missed, work.standing.source
                stage_events(session, self._there, missed, [source], batch.consumer)
        kinds = staged_kinds(self._there)
        tables.pass_over(kinds.keys())
        for name, work in self._works.items():
            if not tables.has_failed(name):
                with self._alone(name):
                    self._find_reason(name, work, kinds.get(name, set()))
        done = []
        rest = {name: work for name, work in self._works.items() if name not in self.in_parts}
        with ExitStack() as stack:
            copy = None
            if any(work.reason for work in rest.values()):
                is_of_tick = any(work.is_of_partitions for work in rest.values())
                deletes = SOFT if is_of_tick else self._target.deletes
                copy = stack.enter_context(Snapshot.of_copy(session.url, batch.queue, deletes))
            for name, work in rest.items():
                if not tables.has_failed(name):
                    with self._alone(name):
                        done.append(self._apply(work, kinds.get(name, set()), copy))
        return done

    def _find_readings(self, work: _Work, events: tuple[Slice, ...]) -> None:
        """Finds the events that a table missed, and how its events are read."""
        standing, source, batch = work.standing, work.standing.source, self._batch
        if standing.copied is None or standing.why_unknown is not None:
            return
        tick_id = self._tables.noted_tick(source.name)
        if tick_id is not None:
            work.missed = self._tables.missed(source, tick_id)
        work.events = where((*events, *work.missed), is_after(standing.copied.transactions))
        work.readings = standing.altered.readings(batch.session, work.events)
        work.standing = replace(standing, source=replace(source, readings=work.readings or {}))

    def _stage(self, slices: Sequence[Slice], sources: Sequence[SourceTable]) -> None:
        """Stages the events of the batch; those of each table alone, if some cannot be staged."""
        session, there, consumer = self._batch.session, self._there, self._batch.consumer
        try:
            with there.transaction():
                stage_events(session, there, slices, sources, consumer)
        except psycopg.Error as error:
            if passes(error):
                raise
            # For tables that are not replicated, the types are enough.
            stage_events(session, there, slices, (), consumer)
            drop = sql.SQL("delete from {} where ev_extra1 = any (%s)").format(CHANGES)
            there.execute(drop, ([each.name for each in sources],))
            for each in sources:
                with self._alone(each.name), translated():
                    mine = of_table(slices, each.name)
                    stage_events(session, there, mine, [each], consumer)

    def go_on(
        self, name: str, deadline: float, ledger: LastBatch, span: Span
    ) -> Iterator[Replicated]:
        """Continues a copy in parts after the transaction. Yields the outcome if it is complete."""
        batch, parts = self._batch, self.in_parts[name]
        try:
            is_complete = parts.read(deadline)
        finally:
            self._tables.note_copying(name, parts.tick_id, parts.progress)
        if not is_complete:
            return
        with self._there.transaction():
            last = ledger.lock(span, batch.renew)
            if last is None:
                raise ConnectionFailed("the target lost the batch", "Run the batch again.")
            work = self._work(self._works[name].standing)
            with refusing(work.table):
                rows, written, copied = parts.publish(work.table)
            work.standing.check_unchanged(batch.session)
            lacking = json.loads(last.failed or "{}")
            del lacking[name]
            ledger.record(span, json.dumps(lacking) if lacking else None)
            batch.renew()
        self._tables.end_copying(name)
        source = work.standing.source
        remember(batch, name, Copied(copied, source.shape))
        yield Replicated(source, work.table.location, None, rows, parts.reason, written)

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """Rolls the block back if it fails, and records the failure for the table."""
        with self._tables.alone(name), self._there.transaction():
            yield

    def _work(self, standing: Standing) -> _Work:
        there, target, batch = self._there, self._target, self._batch
        source = standing.source
        return _Work(standing, replica_of(there, target, source, batch.queue, batch.consumer))

    def _find_reason(self, name: str, work: _Work, kinds: set[str]) -> None:
        """Finds out whether a table is copied, and repairs its triggers first."""
        lacks_from, why = self._lacking.get(name, (None, ""))
        if self._has_batch:
            if why:
                raise TargetRefused(why)
            # A table that is set apart without a reason is being copied in parts.
            if lacks_from is None and work.table.mark is not None:
                return
        follows = self._follows and self._tables.noted_tick(name) == lacks_from
        work.reason = self._copy_reason(work, kinds, follows)
        if work.reason is not None:
            mended = self._work(work.standing.mended(self._batch.session))
            work.standing, work.table = mended.standing, mended.table
            source, noted = work.standing.source, self._tables.copying_tick(name)
            is_only = work.standing.follows_partitions(work.reason) and work.table.fits
            if (partitions := work.standing.altered.partitions) and is_only and not self._has_batch:
                found = rows_of_partitions(self._batch.session, source, partitions.new)
                work.is_of_partitions = found is not None
            if not work.is_of_partitions and self._tables.copies_in_parts(source):
                self.in_parts[name] = parts = CopyInParts(
                    *(self._batch, self._there, self._target, work.table, source, work.reason),
                    *(noted, self._log),
                )
                self._tables.note_copying(name, parts.tick_id, parts.progress)

    def _copy_reason(self, work: _Work, kinds: set[str], follows: bool) -> str | None:
        """Returns why a table must be copied; None if changes can be applied."""
        standing, table, copied = work.standing, work.table, work.standing.copied
        if copied is not None and standing.needs_later(kinds):
            work.later = table.later_kinds(copied.transactions)
        stored = table.mark.copied if table.mark else None
        reason = standing.copy_reason(stored, kinds, work.later)
        if reason is not None or copied is None:
            return reason
        if not follows:
            return "the replica does not end where the batch begins"
        altered = standing.altered
        if reason := self._tables.why_altered(standing, work.readings, work.later, work.events):
            return reason
        if table.fits_after(altered):
            return None
        return altered.reason if altered.needs else "the replica was altered"

    def _follow_partitions(
        self, work: _Work, tick_id: int | None, snapshot: Snapshot
    ) -> int | None:
        """Applies new and removed partitions. Returns how many keys changed; None if it cannot."""
        standing, table, session = work.standing, work.table, self._batch.session
        source, copied, partitions = standing.source, standing.copied, standing.altered.partitions
        if not (work.is_of_partitions and tick_id and copied and partitions):
            return None
        later = self._tables.until(source.name, tick_id)
        new = rows_of_partitions(session, source, partitions.new)
        if new is None or kinds_of(session, (*work.events, *later)).get(source.name, set()) - ROWS:
            return None
        stage_events(session, self._there, later, [source], self._batch.consumer)
        into, keys = table.stage_copy(), table.stage_keys(session)
        with snapshot.connected(session.url) as here:
            pipe(here, keys, self._there, KEYS)
            for query in table.row_queries(session, new):
                pipe(here, query, self._there, into)
        with refusing(table):
            rows = table.correct(copied.transactions, snapshot.transactions, tick_id)
        standing.check_unchanged(session)
        self._log(f"{source.name} follows: {partitions.told}")
        return rows

    def _apply(
        self, work: _Work, kinds: set[str], copy: tuple[int | None, Snapshot] | None
    ) -> Replicated:
        standing, table, batch = work.standing, work.table, self._batch
        source, last, rows, written = standing.source, standing.copied, 0, None
        altered, doubt = standing.altered, None
        resumed: Literal["changed", "copied"] | None = None
        is_truncated = TRUNCATE in work.later and work.reason is None
        followed = self._follow_partitions(work, *copy) if copy else None
        if copy and followed is not None:
            rows, work.reason = followed, None
            last = Copied(copy[1].transactions, source.shape)
        elif work.reason is not None and copy is not None:
            tick_id, snapshot = copy
            self._log(f"copying {source.name}: {work.reason}")
            StagedCopy(self._there, table).remove()  # The table was larger before.
            into = table.stage()
            rows = stage_rows(batch.session, snapshot, table, self._there, into)
            with refusing(table):
                written = table.overwrite(into, snapshot.transactions, tick_id)
            standing.check_unchanged(batch.session)
            last = Copied(snapshot.transactions, source.shape)
        elif self._has_batch and table.mark is not None:
            found = Copied(table.mark.copied, table.mark.shape)
            if last is None or found.transactions != last.transactions:
                last, resumed = found, "copied"
            elif kinds:
                resumed = "changed"
        elif last is not None:
            with refusing(table):
                if altered.needs:
                    table.alter_columns(altered, last.transactions)
                apply = table.replace if is_truncated else table.apply
                rows = apply(last.transactions, batch.lease.tick_id) if kinds else 0
        if last is not None and last != standing.copied:
            remember(batch, source.name, last, is_copy=work.reason is not None)
        elif self._has_batch and (altered.columns or altered.needs) and not table.has_columns:
            # The table was altered again since the earlier attempt.
            forget(batch, source.name)
        else:
            doubt = self._tables.note_shape(standing, kinds)
        return Replicated(
            *(source, table.location, None, rows, work.reason, written, table.added, resumed),
            *(is_truncated, doubt),
        )
