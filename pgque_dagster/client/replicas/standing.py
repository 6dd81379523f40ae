"""How tables stand at a batch of their changes, and why one of them is copied again.

A copy is exact without a lock: its rows are those of one snapshot, and from then on the changes of
transactions that the snapshot contains are left out. The snapshot is remembered in the transaction
of the batch's ack, so it counts only if the attempt that copied is the one that was acked.

Whatever the triggers do not report is answered by another copy: a table that has other columns,
keys, partitions or files than at its last copy, that was truncated, or whose triggers were mended.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Literal

from ..batch import Batch
from ..captured_tables import COPY, Captured, capture, capture_call, captured_tables, request_copy
from ..errors import InvalidArgument
from ..operation import Call
from ..read_batch import ReadBatch
from ..registrations import consumers
from ..session import Session
from ..source_tables import SourceTable
from ..table_spec import TableSpec
from .verification import NEXT_COPIES

# The event after which a table is copied again, as after `COPY`, which somebody sends.
TRUNCATE = "truncate"
UPDATE, DELETE = "update", "delete"
# In place of the type of an event that is delivered again.
REDELIVERED = "redelivered"

TRUNCATED = "it was truncated"

Log = Callable[[str], object]


class ReplicaChanged(InvalidArgument):
    """Somebody else has written a replica."""


@dataclass(frozen=True)
class Replicated:
    """What a batch did to a replica.

    Attributes:
        source: the table.
        location: where the replica is.
        version: its version after the batch; None if nothing was stored, or it has no versions.
        rows: how many rows were copied, or how many keys changed.
        reason: why the table was copied; None if changes were applied.
        written: how many rows of the replica a copy changed; None if it wrote all of them again.
        added: by how many rows the replica grew; None if nobody counts them.
        resumed: what an earlier attempt did that was not acked, `changed` or `copied`, so that
            nobody knows the figures; None if there was none.
    """

    source: SourceTable
    location: str
    version: int | None
    rows: int
    reason: str | None
    written: int | None = None
    added: int | None = None
    resumed: Literal["changed", "copied"] | None = None

    @property
    def is_copied(self) -> bool:
        """Whether the replica has another copy than before the batch."""
        return self.reason is not None or self.resumed == "copied"

    @property
    def is_stored(self) -> bool:
        """Whether the batch changed the replica."""
        return bool(self.is_copied or self.resumed or self.rows)

    @property
    def spec(self) -> TableSpec:
        """What of the table is replicated."""
        return self.source.spec


@dataclass(frozen=True)
class Copied:
    """A table at a copy: the transactions in the snapshot, and the table's shape."""

    transactions: str
    shape: str


@dataclass(frozen=True)
class Standing:
    """A table to replicate, at a batch.

    Attributes:
        queue: the queue of its changes.
        source: the table.
        is_captured: whether it has triggers.
        problem: what is wrong with them.
        copied: its last copy, if the batch of that was acked.
        apart: why it stands apart; None if it does not.
    """

    queue: str
    source: SourceTable
    is_captured: bool
    problem: str | None
    copied: Copied | None
    apart: str | None = None

    @property
    def why_unknown(self) -> str | None:
        """Why nobody knows what the replica should have, until the table is copied again."""
        if not self.is_captured:
            return f"the table is not captured into queue {self.queue}"
        if self.problem is not None:
            return f"changes may be missing, because {self.problem}"
        if self.copied is None:
            return "it has not been copied, a repair was asked for, or events were passed over"
        if self.copied.shape != self.source.shape:
            return (
                "it was altered: its columns, key, partitions or files changed in a way that "
                "triggers do not report, or other columns are left out, masked or text, or arrays "
                "are lists"
            )
        return None

    def copy_reason(
        self,
        stored: str | None,
        kinds: Set[str],
        later: Callable[[], Set[str]],
        foreign_version: int | None = None,
    ) -> str | None:
        """Returns why the table must be copied; None if changes can be applied.

        Args:
            stored: the snapshot of the copy that the replica has; None without one.
            kinds: the types of the table's events in the batch.
            later: returns the types of those that are not in the last copy.
            foreign_version: the replica's newest version, if somebody else wrote rows in it.

        Raises:
            InvalidArgument: if the table is not captured, or is replicated by append and had other
                changes than inserts.
            ReplicaChanged: if somebody else has written the replica, and nobody asked for a copy.
        """
        if not self.is_captured:
            raise InvalidArgument(
                f"table {self.source.name} is not captured into queue {self.queue}",
                f"Capture it, as the table's owner: {capture_call(self.source, self.queue)} it is "
                "copied again after that.",
            )
        if self.copied is None:
            return self.why_unknown
        found = later() if self.unappended(kinds) else set()
        if COPY not in found and (odd := self.unappended(found)):
            raise InvalidArgument(
                f"table {self.source.name} is replicated by append, and its rows had changes of "
                f"type {', '.join(odd)}",
                "Run the job that repairs: it has the table copied again. If this goes on, give "
                "the table a key, and leave out mode: append.",
            )
        asked = later() & {COPY, TRUNCATE} if kinds & {COPY, TRUNCATE} else set()
        # Of all copies, only one that somebody asks for may replace what somebody wrote.
        if foreign_version is not None and COPY not in asked:
            raise ReplicaChanged(
                f"somebody else has written the replica of {self.source.name} since its last "
                f"batch: its newest version {foreign_version} is not ours",
                "Run the job that repairs: it has the table copied again, which replaces what was "
                "written there.",
            )
        if self.why_unknown is not None:
            return self.why_unknown
        if asked:
            return TRUNCATED if TRUNCATE in asked else "somebody asked for it"
        if stored is None:
            return "the target has no copy of it"
        if stored != self.copied.transactions:
            # For example by an attempt that died between its copy and its ack.
            return "the replica holds another copy than the one that was acked"
        if REDELIVERED in kinds:
            return "changes were delivered again, after later ones"
        return None

    def unappended(self, kinds: Set[str]) -> list[str]:
        """Returns the types of changes that a table replicated by append may not have."""
        return [] if self.source.key else sorted(kinds & {UPDATE, DELETE})

    def why_copied(self, kinds: Set[str]) -> str | None:
        """Returns why changes that wait cannot be applied to the replica; None if they can."""
        if COPY not in kinds and self.unappended(kinds):
            return "rows were changed or deleted, which append does not replicate"
        return NEXT_COPIES if kinds & {COPY, TRUNCATE} else None

    def mended(self, session: Session) -> "Standing":
        """Returns the table after its triggers were made again, if something is wrong with them.

        Call it before the snapshot of a copy is taken.
        """
        if self.problem is None:
            return self
        capture(session, self.queue, self.source)
        return replace(self, source=self._now(session), problem=None)

    def has_changed(self, session: Session) -> bool:
        """Whether the table was altered meanwhile."""
        return self._now(session).shape != self.source.shape

    def _now(self, session: Session) -> SourceTable:
        return SourceTable.find(session, self.source.spec, self.queue)

    def check_unchanged(self, session: Session) -> None:
        """Checks, before a copy is published, that the table was not altered meanwhile.

        A table that is rewritten or truncated shows no rows to a snapshot from before.

        Raises:
            InvalidArgument: if it was.
        """
        if self.has_changed(session):
            raise InvalidArgument(
                f"table {self.source.name} was altered or truncated while it was copied",
                "Run the batch again: it copies the table as it is then.",
            )


@dataclass(frozen=True)
class NotedApart:
    """What the last acks noted of a table that stands apart.

    Attributes:
        tick_id: its replica lacks the events after this tick.
        is_kept: whether they are there.
        is_due: whether the pause before the next attempt is over.
        reason: why the last attempt failed.
    """

    tick_id: int
    is_kept: bool
    is_due: bool
    reason: str


class Standings:
    """How the tables that a consumer replicates stand, as `find_standings` found them.

    Attributes:
        apart: those that stand apart, by their names.
    """

    def __init__(
        self,
        session: Session,
        queue: str,
        captured: Mapping[str, Captured],
        copies: Mapping[str, Copied],
        apart: Mapping[str, NotedApart],
    ) -> None:
        self._session, self._queue = session, queue
        self._captured, self._copies = captured, copies
        self.apart = apart

    def has_several_senders(self, name: str) -> bool:
        """Whether several tables send their changes under the name of one."""
        return name in self._captured and self._captured[name].senders > 1

    def has_copy(self, name: str) -> bool:
        """Whether a copy of a table counts, so that the next batch needs no other one."""
        return name in self._copies

    def of(self, table: str | TableSpec) -> Standing:
        """Looks at a table.

        Raises:
            InvalidArgument: if it cannot be replicated, or another one sends its changes, too.
            PermissionDenied: if the role may not read it.
        """
        source = SourceTable.find(self._session, table, self._queue)
        captured, noted = self._captured.get(source.name), self.apart.get(source.name)
        if captured is not None:
            captured.check()
        return Standing(
            self._queue,
            source,
            captured is not None,
            captured.problem if captured else None,
            self._copies.get(source.name),
            noted.reason if noted else None,
        )


def find_standings(session: Session, queue: str, consumer: str) -> Standings:
    """Looks up what is known of the tables that a consumer replicates.

    Args:
        session: of their database.
        queue: the queue into which they are captured.
        consumer: the consumer.
    """
    apart = session.run(
        Call(
            "select table_name, tick_id, is_kept, is_due, reason from pgque.tables_apart(%s, %s)",
            (queue, consumer),
            lambda rows: {name: NotedApart(*rest) for name, *rest in rows},
        )
    )
    copies = _copies(session, queue, consumer)
    return Standings(session, queue, captured_tables(session, queue), copies, apart)


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
    """Has the next batch copy tables that their owner captured, which requests no copy.

    While the consumer has a batch or events wait for it, nothing is requested: the next run copies
    what was never copied.

    Args:
        session: of their database.
        queue: the queue into which they are captured.
        consumer: the consumer.
        tables: their names, as events have them.

    Returns:
        The tables whose copy was requested.
    """
    (state,) = [each for each in session.run(consumers(queue)) if each.name == consumer]
    if state.batch_id is not None or state.pending_events or state.unticked_events:
        return []
    copies = _copies(session, queue, consumer)
    names = [name for name in tables if name not in copies]
    for name in names:
        request_copy(session, queue, name, consumer)
    return names


def stored_ticks(session: Session, queue: str, consumer: str) -> tuple[int, int] | None:
    """Returns the tick at which the last acked run left all replicas, and one without events since.

    None if no run has recorded it yet.
    """
    return session.run(
        Call(
            "select stored_tick, empty_to from pgque.stored_ticks(%s, %s)",
            (queue, consumer),
            lambda rows: (int(rows[0][0]), int(rows[0][1])) if rows else None,
        )
    )


def remember_stored(batch: Batch) -> None:
    """Has the ack of a batch record that all replicas have it."""
    values = (batch.queue, batch.consumer, batch.lease.tick_id)
    query = "select pgque.note_stored(%s, %s, %s)"
    batch.before_ack(lambda connection: connection.execute(query, values))


def acked(batch: ReadBatch) -> Batch:
    """Returns a batch that is acked, and refuses a window.

    Raises:
        InvalidArgument: if it is one.
    """
    if not isinstance(batch, Batch):
        raise InvalidArgument("a window has no replicas", "Replicate by the batches of a consumer.")
    return batch


def remember(batch: Batch, table: str, copied: Copied) -> None:
    """Has the ack of a batch remember the last copy of a table."""
    values = (batch.queue, batch.consumer, table, copied.transactions, copied.shape)
    query = "select pgque.set_replicated(%s, %s, %s, %s::pg_snapshot, %s)"
    batch.before_ack(lambda connection: connection.execute(query, values))


def forget(batch: Batch, table: str) -> None:
    """Has the ack of a batch forget the last copy of a table, which is copied before it is used."""
    values = (batch.queue, batch.consumer, table)
    query = "select pgque.forget_replicated(%s, %s, %s)"
    batch.before_ack(lambda connection: connection.execute(query, values))
