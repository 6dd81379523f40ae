"""Tables that stand apart: what is wrong with one table of a consumer stops no other one.

A batch is applied to each table by itself. A table that fails stands apart from then on: the ack of
the batch notes at which tick, and the events after it are kept. After a pause, a run of a later
batch applies all that the table missed and that batch in one commit, and its ack notes that the
table stands apart no longer. docs/decisions/0015 says why nothing is lost or applied twice.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import psycopg
from psycopg import sql

from ..batch import Batch
from ..captured_tables import forget_copy
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
from ..plans import tick_range_plan
from ..source_tables import SourceTable
from ..table_spec import TableSpec
from .standing import Log, ReplicaChanged, Standing, find_standings, forget

# What concerns all tables, beside errors of a database that pass.
_OF_ALL = (BatchNotOpen, ConnectionFailed, LeaseLost, StaleReadPlan, TargetOutOfStep)
# What concerns one table alone: a row of it, or what somebody did to its replica.
_OF_ONE = (MalformedPayload, ReplicaChanged, TargetRefused)
# Of the events that a table missed.
_SLICES = 4
# Of a reason, so many letters are kept.
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


@dataclass(frozen=True)
class Apart:
    """A table that stands apart from a batch.

    Attributes:
        spec: what of the table is replicated.
        name: the table, as events have it.
        tick_id: its replica lacks the events after this tick.
        reason: why it stands apart.
    """

    spec: TableSpec
    name: str
    tick_id: int
    reason: str


class BatchTables:
    """The tables of a batch: those that it is applied to, and those that stand apart.

    Args:
        batch: the batch.
        specs: the names of the tables, or what of them is replicated.
        log: is told why tables stand apart.

    Attributes:
        specs: what of each table is replicated, by its name as events have it.
        tried: the tables that the batch is applied to: those that stand apart are among them when
            their pause is over.
        stored: the tables that the target has up to the end of the batch already, by an attempt
            that was not acked.

    Raises:
        InvalidArgument: if a table is named twice.
    """

    def __init__(self, batch: Batch, specs: Sequence[str | TableSpec], log: Log) -> None:
        self._batch, self._log = batch, log
        found = [TableSpec.of(each) for each in specs]
        names = batch.session.run(
            Call(_NAMES, ([each.source for each in found],), lambda rows: [n for (n,) in rows])
        )
        if len(set(names)) < len(names):
            raise InvalidArgument(
                f"two of the tables are one: {', '.join(names)}", "Name each once."
            )
        self.specs = dict(zip(names, found, strict=True))
        self._standings = find_standings(batch.session, batch.queue, batch.consumer)
        self._noted = self._standings.apart
        self.tried = [n for n in names if n not in self._noted or self._noted[n].is_due]
        self._failed: dict[str, Exception] = {}
        self.stored: set[str] = set()

    def standing(self, name: str) -> Standing:
        """Returns how a table stands. Raises as `Standings.of` does."""
        noted = self._noted.get(name)
        if self._standings.has_several_senders(name):
            # When one of them is left, nobody knows whose its events were.
            forget_copy(self._batch.session, self._batch.queue, self._batch.consumer, name)
        standing = self._standings.of(self.specs[name])
        # What it missed is not there any more.
        return replace(standing, copied=None) if noted and not noted.is_kept else standing

    def noted_tick(self, name: str) -> int | None:
        """Returns the tick after which a table lacks events; None if it does not stand apart."""
        return self._noted[name].tick_id if name in self._noted else None

    def missed(self, source: SourceTable, from_tick: int) -> tuple[Slice, ...]:
        """Plans to read the events of a table between a tick and the batch."""
        batch = self._batch
        to_tick = batch.lease.prev_tick_id
        if from_tick >= to_tick:
            return ()
        plan = batch.session.run(
            tick_range_plan(batch.queue, from_tick, to_tick, _SLICES, batch.consumer)
        )
        mine = sql.SQL(" pgque_missed where ev_extra1 = {}").format(source.name).as_string(None)
        return tuple(
            Slice(
                f"select * from ({part.sql}){mine}",
                f"(select * from {part.rows}){mine}",
                part.set_columns,
            )
            for part in plan.slices
        )

    @contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """Has the block's error be that of one table, unless it concerns all of them."""
        try:
            with self._batch.own_checks():
                yield
        except Exception as error:
            if isinstance(error, _OF_ALL) or (passes(error) and not _lacks_right(error)):
                raise
            self._failed[name] = error

    def has_failed(self, name: str) -> bool:
        """Whether a table failed in this run."""
        return name in self._failed

    def settle(self) -> list[Apart]:
        """Has the ack note which tables stand apart.

        Returns:
            Those that do. These may be all: then the ack alone records the batch.

        Raises:
            Exception: that of the first table that failed, if no table has the batch and something
                else than rows or replicas may be the cause.
        """
        done = [name for name in self.tried if name not in self._failed]
        # What stops all tables is the target's trouble, unless each has a cause of its own.
        new = [error for name, error in self._failed.items() if name not in self._noted]
        others = [each for each in new if not isinstance(each, _OF_ONE) or passes(each)]
        if others and not done:
            raise others[0]
        apart = []
        for name, spec in self.specs.items():
            error, noted = self._failed.get(name), self._noted.get(name)
            if error is None and noted is None:
                continue
            tick_id = self._batch.lease.prev_tick_id if noted is None else noted.tick_id
            if name in self.stored:
                tick_id = self._batch.lease.tick_id
            if name in done:
                self._log(f"{name} stands apart no longer")
                self._note(name, tick_id, None)
                continue
            reason = noted.reason if noted else ""
            if error is not None:
                reason = " ".join(told(error).split())[:_SHOWN]
                self._note(name, tick_id, reason)
                if isinstance(error, ReplicaChanged):
                    self._note_difference(name, tick_id, reason)
            self._log(f"{name} stands apart from tick {tick_id} on: {reason}")
            apart.append(Apart(spec, name, tick_id, reason))
        for name in self._noted.keys() - self.specs.keys():
            # It is replicated no longer, and what it missed is not needed.
            forget(self._batch, name)
            self._note(name, 0, None)
        return apart

    def _note(self, name: str, tick_id: int, reason: str | None) -> None:
        values = (self._batch.queue, self._batch.consumer, name, tick_id, reason)
        query = "select pgque.set_apart(%s, %s, %s, %s, %s)"
        self._batch.before_ack(lambda connection: connection.execute(query, values))
        if reason is not None and self._standings.has_copy(name):
            # A repair that was asked for meanwhile does not wait for the pause that begins here.
            mine = values[:3]
            self._batch.before_ack(lambda connection: connection.execute(_REPAIR, (*mine, *mine)))

    def _note_difference(self, name: str, tick_id: int, problem: str) -> None:
        """Has the ack note that a replica differs, until a comparison finds that it does not."""
        values = (tick_id, problem, self._batch.queue, self._batch.consumer, name)
        self._batch.before_ack(lambda connection: connection.execute(_DIFFERENCE, values))


def _lacks_right(error: BaseException | None) -> bool:
    """Whether an error, or what it was raised from, is a missing right, on something of a table."""
    while error is not None:
        if isinstance(error, PermissionDenied | psycopg.errors.InsufficientPrivilege):
            return True
        error = error.__cause__
    return False
