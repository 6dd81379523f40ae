"""Tables that are set apart: a problem with one table of a consumer stops no other table.

A batch is applied to each table on its own. A table that fails is set apart from then on: the ack
of the batch records from which tick, and the events after it are kept. After a pause, a run of a
later batch applies everything that the table missed, and that batch, in one commit; its ack records
that the table is back. docs/decisions/0015 says why nothing is lost or applied twice.
"""

from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg

from ..batch import Batch
from ..errors import (
    BatchNotOpen,
    ConnectionFailed,
    InvalidArgument,
    LeaseLost,
    MalformedPayload,
    PermissionDenied,
    StaleReadPlan,
    TargetOutOfStep,
    TargetRefused,
    passes,
    told,
)
from ..models import Slice
from ..operation import Call
from ..plans import of_table, tick_range_plan
from .capture import forget_copy
from .events import TRUNCATE, kinds
from .outcome import Apart, Copied, forget, remember_shape
from .parts import Extent
from .shape import REWRITTEN
from .snapshot import Snapshot
from .source import Readings, SourceTable
from .spec import TableSpec
from .standing import Log, ReplicaChanged, Standing, find_standings

# Errors that concern all tables, besides temporary errors of a database.
_OF_ALL = (BatchNotOpen, ConnectionFailed, LeaseLost, StaleReadPlan, TargetOutOfStep)
# Errors that concern one table: one of its rows, or a change to its replica.
_OF_ONE = (MalformedPayload, ReplicaChanged, TargetRefused)
# How many slices read the events that a table missed.
_SLICES = 4
# The maximum length of a stored reason.
_SHOWN = 2000
_NAMES = """
select coalesce(pgque.captured_name(name), name)
from unnest(%s::text[]) with ordinality t (name, number) order by number
"""
_REPAIR = """
select pgque.forget_replicated(%s, %s, %s) where not exists (
    select from (values (%s, %s, %s)) asked (queue, consumer, name)
    join pgque.replicated_tables(queue, consumer) on table_name = name)
"""
_DIFFERENCE = """
select pgque.note_verified(queue_name, consumer_name, table_name, copied_tick,
    greatest(%s, verified_tick), null, %s, null)
from pgque.replicas(%s) where consumer_name = %s and table_name = %s
"""


class BatchTables:
    """The tables of a batch: those to which it is applied, and those that are set apart.

    Args:
        batch: the batch.
        specs: the names of the tables, or their specs.
        log: gets messages about tables that are set apart.
        follows: what the target does if columns are added or dropped (`Altered.needs`).

    Attributes:
        specs: what is replicated of each table, by the table's name in events.
        tried: the tables to which the batch is applied, including tables that are set apart and
            whose pause is over.
        stored: the tables that the target already has up to the end of the batch, from an attempt
            that was not acked.

    Raises:
        InvalidArgument: if a table is named twice.
    """

    def __init__(
        self,
        batch: Batch,
        specs: Sequence[str | TableSpec],
        log: Log,
        follows: Set[str] = frozenset(),
    ) -> None:
        self._batch, self._log, self._follows = batch, log, follows
        found = [TableSpec.of(each) for each in specs]
        names = batch.session.run(
            Call(_NAMES, ([each.source for each in found],), lambda rows: [n for (n,) in rows])
        )
        if len(set(names)) < len(names):
            raise InvalidArgument(
                f"two of the tables are the same: {', '.join(names)}", "Name each once."
            )
        self.specs = dict(zip(names, found, strict=True))
        self._standings = find_standings(batch.session, batch.queue, batch.consumer)
        self._noted = self._standings.apart
        self.tried = [n for n in names if n not in self._noted or self._noted[n].is_due]
        self._failed: dict[str, Exception] = {}
        self._copying: dict[str, tuple[int, str]] = {}
        self.stored: set[str] = set()

    def pass_over(self, found: Set[str]) -> None:
        """Skips the changes of the captured tables in `found` that are not to be replicated.

        Nothing is lost: if this consumer replicates the table later, or again, it copies it.
        """
        batch, others = self._batch, found - self.specs.keys()
        captured = sorted(name for name in others if self._standings.is_captured(name))
        if not captured:
            return
        query = "select t, pgque.replicated_by(%s, t) from unnest(%s::text[]) t"
        found_in: dict[str, Any] = batch.session.run(Call(query, (batch.queue, captured), dict))
        for table in captured:
            forget(batch, table)
            if found_in[table] in (None, [batch.consumer]):
                self._log(
                    f"changes of {table} are skipped: it is captured and not among the tables "
                    "to replicate. Add it to them, or end its capture: select "
                    f"pgque.uncapture('{table}', '{batch.queue}');"
                )

    def standing(self, name: str) -> Standing:
        """Returns the standing of a table. Raises as `Standings.of` does."""
        noted = self._noted.get(name)
        if self._standings.has_several_senders(name):
            # When one of them leaves, it is unknown which events came from which table.
            forget_copy(self._batch.session, self._batch.queue, self._batch.consumer, name)
        standing = replace(self._standings.of(self.specs[name]), follows=self._follows)
        if standing.altered.partitions:
            standing = standing.mended(self._batch.session)
        # The events that it missed are gone.
        return replace(standing, copied=None) if noted and not noted.is_kept else standing

    def noted_tick(self, name: str) -> int | None:
        """Returns the tick after which a table misses events; None if it is not set apart."""
        return self._noted[name].tick_id if name in self._noted else None

    def copying_tick(self, name: str) -> int | None:
        """Returns the tick of the copy in parts that earlier runs have begun; None without one."""
        noted = self._noted.get(name)
        return noted.tick_id if noted and noted.copying is not None else None

    def copies_in_parts(self, source: SourceTable) -> bool:
        """Returns whether a table that is copied now is copied in parts."""
        # Rows without a key cannot be distinguished from those that events name.
        return bool(source.key) and (
            self.copying_tick(source.name) is not None
            or Extent.of(self._batch.session, source).is_large
        )

    def why_altered(
        self,
        standing: Standing,
        readings: Readings | None,
        later: Set[str],
        events: Sequence[Slice],
    ) -> str | None:
        """Returns why a table is copied if its shape alone does not say; None if it is not copied.

        Args:
            standing: the table's standing, which does not require a copy.
            readings: how its events that the last copy lacks are read, if that is known.
            later: the types of these events, if a TRUNCATE is among them.
            events: a plan to read them.
        """
        altered = standing.altered
        if readings is None:
            return f"{altered.reason}; and changes do not tell which columns they have"
        if altered.is_rewritten and (altered.columns or altered.needs):
            return altered.reason
        if altered.partitions:
            events = (*events, *self._later(standing.source.name))
            if not altered.has_all_rows(self._batch.session, standing.source.name, events):
                return altered.reason
        truncated = ("it was truncated",) if TRUNCATE in later else ()
        if told := (*altered.told, *truncated):
            self._log(f"{standing.source.name} follows: {'; '.join(told)}")
        return None

    def _is_truncated_later(self, standing: Standing) -> bool:
        """Returns whether a TRUNCATE that has replaced a table's files comes after the batch."""
        name = standing.source.name
        return TRUNCATE in kinds(self._batch.session, self._later(name)).get(name, set())

    def _later(self, name: str) -> tuple[Slice, ...]:
        """Returns a plan to read the events of a table from the batch until now."""
        with Snapshot.of_tick(self._batch.session.url, self._batch.queue) as (tick_id, _):
            return self.until(name, tick_id)

    def until(self, name: str, tick_id: int) -> tuple[Slice, ...]:
        """Returns a plan to read the events of a table from the batch until a later tick."""
        batch = self._batch
        plan = tick_range_plan(batch.queue, batch.lease.tick_id, tick_id, _SLICES)
        return of_table(batch.session.run(plan).slices, name)

    def note_shape(self, standing: Standing, later: Set[str]) -> str | None:
        """Makes the ack record a table's shape, if all events applied from then on have it.

        Returns:
            Why rows may differ since it was altered, which the ack records, too; None if not.
        """
        copied, altered, source = standing.copied, standing.altered, standing.source
        if copied is None or copied.shape == source.shape or standing.why_unknown:
            return None
        doubts = altered.doubts
        if altered.is_rewritten and TRUNCATE not in later:
            if altered.columns or altered.needs or self._is_truncated_later(standing):
                return None
            doubts = (*doubts, REWRITTEN)
        doubt = "; ".join(doubts) or None
        if doubt:
            self._log(f"{source.name} may differ from its replica until they are compared: {doubt}")
        remember_shape(self._batch, source.name, Copied(copied.transactions, source.shape), doubt)
        return doubt

    def note_copying(self, name: str, tick_id: int, progress: str) -> None:
        """Makes the ack record how far a copy in parts is, and keep the events after a tick."""
        if name not in self._copying:
            # Only the copy may come next: the batches until then are not applied.
            forget(self._batch, name)
        self._copying[name] = (tick_id, progress)

    def end_copying(self, name: str) -> None:
        """Makes the ack record that a table joins the others, because its copy is published."""
        del self._copying[name]

    def missed(self, source: SourceTable, from_tick: int) -> tuple[Slice, ...]:
        """Returns a plan to read the events of a table between a tick and the batch."""
        batch = self._batch
        to_tick = batch.lease.prev_tick_id
        if from_tick >= to_tick:
            return ()
        plan = batch.session.run(
            tick_range_plan(batch.queue, from_tick, to_tick, _SLICES, batch.consumer)
        )
        return of_table(plan.slices, source.name)

    @contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """Attributes an error in the block to one table, unless it concerns all tables."""
        try:
            with self._batch.own_checks():
                yield
        except Exception as error:
            if isinstance(error, _OF_ALL) or (passes(error) and not _lacks_right(error)):
                raise
            self._failed[name] = error

    def has_failed(self, name: str) -> bool:
        """Returns whether a table failed in this run."""
        return name in self._failed

    def apart(self) -> list[Apart]:
        """Returns the tables that are set apart now.

        Raises:
            Exception: the error of the first table that failed, if no table has the batch and the
                cause may be something other than rows or replicas.
        """
        done = [name for name in self.tried if name not in self._failed]
        # If all tables fail, it is the target's problem, unless each has its own cause.
        new = [error for name, error in self._failed.items() if name not in self._noted]
        others = [each for each in new if not isinstance(each, _OF_ONE) or passes(each)]
        if others and not done:
            raise others[0]
        apart = []
        for name, spec in self.specs.items():
            error, noted = self._failed.get(name), self._noted.get(name)
            if name not in self._copying and error is None and (noted is None or name in done):
                continue
            tick_id = self._batch.lease.prev_tick_id if noted is None else noted.tick_id
            if name in self.stored:
                tick_id = self._batch.lease.tick_id
            found = (tick_id, noted.copying if noted else None)
            tick_id, copying = self._copying.get(name, found)
            reason = noted.reason if noted and name not in done else ""
            if error is not None:
                reason = " ".join(told(error).split())[:_SHOWN]
            apart.append(Apart(spec, name, tick_id, reason, copying))
        return apart

    def settle(self) -> list[Apart]:
        """Makes the ack record which tables are set apart.

        Returns:
            The tables that do. If these are all tables, only the ack records the batch.

        Raises:
            Exception: as for `apart`.
        """
        apart = self.apart()
        for each in apart:
            if isinstance(self._failed.get(each.name), ReplicaChanged):
                self._note_difference(each.name, each.tick_id, each.reason)
            if each.name in self.tried:
                self._note(each.name, each.tick_id, each.reason or None, each.copying)
            why = each.reason or "it is copied in parts"
            self._log(f"{each.name} is set apart from tick {each.tick_id} on: {why}")
        for name in self._noted.keys() - {each.name for each in apart}:
            if name in self.specs:
                self._log(f"{name} is no longer set apart")
            else:
                # It is no longer replicated, and the events that it missed are not needed.
                forget(self._batch, name)
            self._note(name, 0, None)
        return apart

    def _note(
        self, name: str, tick_id: int, reason: str | None, copying: str | None = None
    ) -> None:
        values = (self._batch.queue, self._batch.consumer, name, tick_id, reason, copying)
        query = "select pgque.set_apart(%s, %s, %s, %s, %s, %s)"
        self._batch.before_ack(lambda connection: connection.execute(query, values))
        if reason is not None and copying is None and self._standings.has_copy(name):
            # A repair requested in the meantime does not wait for the pause that begins here.
            mine = values[:3]
            self._batch.before_ack(lambda connection: connection.execute(_REPAIR, (*mine, *mine)))

    def _note_difference(self, name: str, tick_id: int, problem: str) -> None:
        """Makes the ack record that a replica differs, until a comparison finds it equal."""
        values = (tick_id, problem, self._batch.queue, self._batch.consumer, name)
        self._batch.before_ack(lambda connection: connection.execute(_DIFFERENCE, values))


def _lacks_right(error: BaseException | None) -> bool:
    """Returns whether an error or its cause is a missing right on an object of a table."""
    while error is not None:
        if isinstance(error, PermissionDenied | psycopg.errors.InsufficientPrivilege):
            return True
        error = error.__cause__
    return False
