"""The standing of tables at a batch of their changes, and the reasons for another copy.

A copy is exact without a lock: its rows are those of one snapshot (`parts.py` says how, if they are
read in several), and later changes are skipped if the snapshot contains their transaction. The
snapshot is recorded in the transaction of the batch's ack, so it counts only if the attempt that
copied is also the one that was acked.

Changes that triggers do not report cause another copy, for example if a table's key changed since
its last copy, or its triggers were repaired. If only its files or the labels of an enum changed,
its rows are usually the same: it is not copied, and the ack records that they may differ.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property

from ..errors import InvalidArgument
from ..operation import Call
from ..registrations import read_consumers
from ..session import Session
from .capture import COPY, Captured, capture_by_name, capture_call, captured_tables, request_copy
from .events import DELETE, REDELIVERED, TRUNCATE, UPDATE
from .outcome import Copied
from .partitions import ATTACHED
from .shape import Altered
from .source import SourceTable
from .spec import TableSpec
from .status import replica_of_table

NEXT_COPIES = "the next batch replaces all rows"

Log = Callable[[str], object]


class ReplicaChanged(InvalidArgument):
    """Another program has written a version of a replica."""

    def __init__(self, table: str, version: int) -> None:
        super().__init__(
            f"another program has written to the replica of {table} since its last batch: its "
            f"version {version} is not ours",
            "Run the repair job: it copies the table again, which replaces what was written there.",
        )


@dataclass(frozen=True)
class Standing:
    """A table to replicate, at a batch.

    Attributes:
        problem: what is wrong with its triggers.
        copied: its last copy, if that batch was acked.
        apart: how it is set apart; None if it is not.
        follows: which of `Altered.needs` the target supports.
        difference: what the last comparison found, if it was not copied since; None if nothing.
    """

    queue: str
    source: SourceTable
    is_captured: bool
    problem: str | None
    copied: Copied | None
    apart: str | None = None
    follows: Set[str] = frozenset()
    difference: str | None = None

    @property
    def why_unknown(self) -> str | None:
        """Why the replica's wanted content is unknown until the table is copied again."""
        if not self.is_captured:
            return f"the table is not captured into queue {self.queue}"
        if self.problem is not None:
            return f"changes may be missing, because {self.problem}"
        if self.copied is None:
            found = f"; rows differed: {self.difference}" if self.difference else ""
            return f"it has not been copied, a repair was requested, or events were skipped{found}"
        altered = self.altered
        return altered.reason if altered.why or not altered.needs <= self.follows else None

    @cached_property
    def altered(self) -> Altered:
        """How the table has changed since its last copy."""
        return Altered.since(self.copied.shape, self.source) if self.copied else Altered()

    def follows_partitions(self, reason: str | None) -> bool:
        """Returns whether partitions are the only reason for a copy."""
        altered = self.altered
        others = (altered.why, altered.doubts, altered.columns, altered.needs)
        is_all = not (any(others) or altered.is_rewritten) and reason == altered.reason
        return bool(altered.partitions and self.source.key and is_all)

    def needs_later(self, kinds: Set[str]) -> bool:
        """Returns whether the last copy lacks events that matter; `kinds` are the events' types."""
        return self.copied is not None and bool(kinds & {COPY, TRUNCATE} or self.unappended(kinds))

    def copy_reason(
        self,
        stored: str | None,
        kinds: Set[str],
        later: Set[str],
        foreign_version: int | None = None,
    ) -> str | None:
        """Returns why the table must be copied; None if changes can be applied.

        Args:
            stored: the snapshot of the replica's copy; None without a copy.
            kinds: the types of the table's events in the batch.
            later: the types of events that are not in the last copy, if `needs_later` is true;
                after a TRUNCATE, of this and the later ones.
            foreign_version: the replica's version with another program's rows, if there is one.

        Raises:
            InvalidArgument: if the table is not captured, or is replicated by append and has
                changes other than inserts.
            ReplicaChanged: if another program wrote to the replica, and no copy was requested.
        """
        if not self.is_captured:
            name, append = self.source.name, not self.source.key
            statement = capture_call(name, self.queue, append=append)
            raise InvalidArgument(
                f"table {self.source.name} is not captured into queue {self.queue}",
                f"Capture it, as the table's owner: {statement} it is copied again after that.",
            )
        if self.copied is None:
            return self.why_unknown
        found = later if self.unappended(kinds) else set()
        is_asked = COPY in later
        if not is_asked and (odd := self.unappended(found)):
            raise InvalidArgument(
                f"table {self.source.name} is replicated by append, and its rows had changes of "
                f"type {', '.join(odd)}",
                "Run the repair job, which copies the table again. If this recurs, give "
                "the table a key, and leave out mode: append.",
            )
        # Only a requested copy may replace what another program wrote.
        if foreign_version is not None and not is_asked:
            raise ReplicaChanged(self.source.name, foreign_version)
        if self.why_unknown is not None:
            return self.why_unknown
        if is_asked:
            return "it was requested"
        if stored is None:
            return "the target has no copy of it"
        if stored != self.copied.transactions:
            # For example, an attempt died between its copy and its ack.
            return "the replica holds another copy than the one that was acked"
        if REDELIVERED in kinds:
            return "changes were delivered again, after later ones"
        return None

    def unappended(self, kinds: Set[str]) -> list[str]:
        """Returns the types of changes that are not allowed for a table replicated by append."""
        return [] if self.source.key else sorted(kinds & {UPDATE, DELETE})

    def why_copied(self, kinds: Set[str]) -> str | None:
        """Returns why waiting changes cannot be applied to the replica; None if they can."""
        if COPY not in kinds and self.unappended(kinds):
            return "rows were changed or deleted, which append does not replicate"
        if kinds and self.altered.columns:
            return "columns were defined again, or added, since the last batch"
        if self.altered.partitions:
            return f"{ATTACHED} since the last batch"
        return NEXT_COPIES if kinds & {COPY, TRUNCATE} else None

    def mended(self, session: Session) -> "Standing":
        """Repairs the triggers if something is wrong with them; returns the table.

        Call it before the snapshot of a copy is taken.
        """
        if self.problem is None:
            return self
        source = self.source
        capture_by_name(session, self.queue, source.name, append=not source.key)
        return replace(self, source=self._now(session), problem=None)

    def has_changed(self, session: Session) -> bool:
        """Returns whether the table was altered in the meantime."""
        return self._now(session).shape != self.source.shape

    def _now(self, session: Session) -> SourceTable:
        return SourceTable.find(session, self.source.spec, self.queue)

    def check_unchanged(self, session: Session) -> None:
        """Refuses to publish a copy of a table that was altered in the meantime.

        A table that is rewritten or truncated shows no rows to an earlier snapshot.
        """
        if self.has_changed(session):
            raise InvalidArgument(
                f"table {self.source.name} was altered or truncated while it was copied",
                "Run the batch again: it copies the table in its new state.",
            )


@dataclass(frozen=True)
class NotedApart:
    """What the last acks recorded about a table that is set apart.

    Attributes:
        tick_id: its replica misses the events after this tick.
        is_kept: whether these events still exist.
        is_due: whether the pause before the next attempt is over.
        reason: why the last attempt failed; empty if it did not.
        copying: how far its copy in parts is, which needs the events after the tick; None without.
    """

    tick_id: int
    is_kept: bool
    is_due: bool
    reason: str
    copying: str | None


class Standings:
    """The standings of the tables that a consumer replicates, as read by `find_standings`.

    Attributes:
        apart: the tables that are set apart, by name.
    """

    def __init__(
        self,
        session: Session,
        queue: str,
        consumer: str,
        captured: Mapping[str, Captured],
        copies: Mapping[str, Copied],
        apart: Mapping[str, NotedApart],
    ) -> None:
        self._session, self._queue, self._consumer = session, queue, consumer
        self._captured, self._copies = captured, copies
        self.apart = apart

    def has_several_senders(self, name: str) -> bool:
        """Returns whether several tables send their changes under this name."""
        return name in self._captured and self._captured[name].senders > 1

    def is_captured(self, name: str) -> bool:
        """Returns whether tables send their changes under this name."""
        return name in self._captured

    def has_copy(self, name: str) -> bool:
        """Returns whether a table has a valid copy, so that the next batch needs no other one."""
        return name in self._copies

    def of(self, table: str | TableSpec) -> Standing:
        """Reads the definition of a table, and returns its standing.

        Raises:
            InvalidArgument: if it cannot be replicated, or another table sends changes as it.
            PermissionDenied: if the role may not read it.
        """
        source = SourceTable.find(self._session, table, self._queue)
        captured, noted = self._captured.get(source.name), self.apart.get(source.name)
        if captured is not None:
            captured.check()
        copied = self._copies.get(source.name)
        if copied and not copied.shape.startswith("{"):
            source = replace(source, old_shape=self._old_shape(source))
        status = None
        if copied is None:
            status = self._session.run(replica_of_table(self._queue, self._consumer, source.name))
        return Standing(
            self._queue,
            source,
            captured is not None,
            captured.problem if captured else None,
            copied,
            (noted.reason or f"it is being copied: {noted.copying}") if noted else None,
            difference=status.verified_problem if status else None,
        )

    def _old_shape(self, source: SourceTable) -> str:
        query = "select pgque.table_shape(%s::regclass, %s)"
        found = Call(query, (source.name, self._queue), lambda rows: str(rows[0][0]))
        return self._session.run(found) + source.spec.shape()


def find_standings(session: Session, queue: str, consumer: str) -> Standings:
    """Reads what is known about the tables that a consumer replicates."""
    apart = session.run(
        Call(
            "select table_name, tick_id, is_kept, is_due, reason, copying "
            "from pgque.tables_apart(%s, %s)",
            (queue, consumer),
            lambda rows: {name: NotedApart(*rest) for name, *rest in rows},
        )
    )
    copies = _copies(session, queue, consumer)
    return Standings(session, queue, consumer, captured_tables(session, queue), copies, apart)


def _copies(session: Session, queue: str, consumer: str) -> dict[str, Copied]:
    return session.run(
        Call(
            "select table_name, copied::text, shape from pgque.replicated_tables(%s, %s)",
            (queue, consumer),
            lambda rows: {name: Copied(copied, shape) for name, copied, shape in rows},
        )
    )


def request_first_copies(
    session: Session, queue: str, consumer: str, tables: Iterable[str]
) -> list[str]:
    """Requests copies of tables that their owner captured, because that requests none.

    While the consumer has a batch or events wait for it, nothing is requested: the next run copies
    tables that were never copied.

    Returns:
        The tables whose copy was requested.
    """
    (state,) = [each for each in session.run(read_consumers(queue)) if each.name == consumer]
    if state.batch_id is not None or state.pending_events or state.unticked_events:
        return []
    copies = _copies(session, queue, consumer)
    names = [name for name in tables if name not in copies]
    for name in names:
        request_copy(session, queue, name, consumer)
    return names
