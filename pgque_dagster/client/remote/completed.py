"""Tracks in the target which batch of a consumer was applied last, as PgQ's pgq_ext does.

The row of a consumer is written in the transaction that applies the batch, so both commit or
neither does. It names the ticks of the batch, with their fingerprints. So the next batch is applied
only if it begins where the last one ended: if either database lost its last transactions, or the
consumer was moved, the two do not meet, and nothing is applied until somebody decides.

The ledger of the Spark sinks cannot serve for this: it has a row for each batch of any order, for
ever, and neither ticks nor the events that failed.

The lock on the row makes attempts at a batch wait for each other, so a process that was stopped and
goes on after another one took over finds the batch applied.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

import psycopg

from ..batch import identity
from ..errors import DatabaseError, TargetOutOfStep
from ..models import Lease
from ..rights import Connection, create_missing_table, needing
from ..session import Session

BATCHES = "pgque_completed_batch"
# Of versions before 0.4, which could apply a batch event by event.
EVENTS = "pgque_completed_event"
_BATCH_COLUMNS = (
    "(queue text, consumer text, lineage uuid, batch_id bigint, prev_tick_id bigint,"
    " tick_id bigint, fingerprint text, failed text,"
    " applied_at timestamptz not null default now(), primary key (queue, consumer))"
)
_RIGHTS = "select, insert, update"
_LOCK_WAIT = "10s"


@dataclass(frozen=True)
class Span:
    """A batch, and the ticks that it lies between.

    Attributes:
        incarnation: of the queue's database.
        prev_fingerprint: tells the tick before the batch from another one of its number.
        fingerprint: the same for the tick that ends it.
    """

    batch_id: int
    prev_tick_id: int
    tick_id: int
    incarnation: UUID
    prev_fingerprint: str | None
    fingerprint: str | None

    @staticmethod
    def of(session: Session, queue: str, lease: Lease) -> "Span":
        """Looks up what identifies a leased batch of a queue."""
        incarnation, *fingerprints = session.run(identity(queue, lease))
        return Span(lease.batch_id, lease.prev_tick_id, lease.tick_id, incarnation, *fingerprints)


@dataclass(frozen=True)
class Completed:
    """The last batch that the target applied; all None before the first one.

    Attributes:
        failed: which events of it failed, as `Failed.dump` wrote it.
    """

    incarnation: UUID | None
    batch_id: int | None
    prev_tick_id: int | None
    tick_id: int | None
    fingerprint: str | None
    failed: str | None

    def has(self, batch: Span) -> bool:
        """Whether it is this batch."""
        return (self.batch_id, self.prev_tick_id, self.tick_id, self.fingerprint) == (
            batch.batch_id,
            batch.prev_tick_id,
            batch.tick_id,
            batch.fingerprint,
        )

    def precedes(self, batch: Span) -> bool:
        """Whether the batch begins where this one ended."""
        return self.tick_id is None or (self.tick_id, self.fingerprint) == (
            batch.prev_tick_id,
            batch.prev_fingerprint,
        )


class CompletedBatches:
    """The row of one consumer of one queue in the target.

    Args:
        queue: the queue's name.
        consumer: the consumer's name.
    """

    def __init__(self, queue: str, consumer: str) -> None:
        self._name = f"{queue}/{consumer}"
        self._key = (queue, consumer)

    def prepare(self, connection: Connection) -> None:
        """Creates the table and the row if they are missing, and checks the rights.

        Raises:
            PermissionDenied: if the table is missing and the role may not create it, or if the role
                may not write to it.
        """
        what = "table of applied batches"
        create_missing_table(connection, None, BATCHES, _BATCH_COLUMNS, _RIGHTS, what)
        with needing(connection, _RIGHTS, BATCHES, "which records the applied batches"):
            connection.execute(f"explain update {BATCHES} set batch_id = null".encode())
            insert = f"insert into {BATCHES} (queue, consumer) values (%s, %s)"
            connection.execute(f"explain {insert}".encode(), self._key)
            # Only then, because an insert waits for a transaction that changes the row.
            if self._select(connection, "") is None:
                connection.execute(f"{insert} on conflict do nothing".encode(), self._key)

    def check_events(self, connection: Connection) -> None:
        """Checks that no batch was applied in part, event by event, by an earlier version.

        Raises:
            TargetOutOfStep: if one was, so that the next batch has events that were applied.
        """
        if not self._has_event_table(connection):
            return
        row = connection.execute(
            f"select batch_id, count(*) from {EVENTS}"
            " where queue = %s and consumer = %s group by batch_id order by 1".encode(),
            self._key,
        ).fetchone()
        if row is not None:
            raise TargetOutOfStep(
                f"database {connection.info.dbname} has applied {row[1]} events of batch {row[0]} "
                f"of {self._name}, event by event, and not the whole batch; nothing was applied or "
                "acked",
                "Run the version before 0.4 until that batch is acked. Or compare the data, then "
                "call reset() of the consumer to apply the next batch as it is.",
            )

    def read(self, connection: Connection) -> Completed:
        """Returns the last batch that was applied."""
        return self._select(connection, "") or Completed(*[None] * 6)

    def take(self, connection: Connection, check_lease: Callable[[], object]) -> Completed:
        """Locks the row until the end of the transaction. Call it first in the transaction.

        If a session holds the lock that belongs to an attempt which lost its lease, such as a
        process that is stopped, it is terminated.

        Args:
            connection: of the target.
            check_lease: raises if this attempt has lost the lease in the queue's database.

        Returns:
            The last batch that was applied.

        Raises:
            DatabaseError: if another session holds the lock and cannot be terminated.
        """
        found = self._select(connection, "for update skip locked")
        if found is None:
            check_lease()
            found = self._take_lock(connection)
        return found

    def lock(
        self, connection: Connection, batch: Span, check_lease: Callable[[], object]
    ) -> Completed | None:
        """Locks the row as `take` does. Returns the batch, if it is applied already; else None.

        Raises:
            TargetOutOfStep: if the batch does not follow the last one that was applied.
            DatabaseError: as for `take`.
        """
        found = self.take(connection, check_lease)
        if found.has(batch):
            return found
        if not found.precedes(batch):
            # An attempt that was stopped while others went on is late, which nobody must mend.
            check_lease()
            raise self._out_of_step(connection, batch, found)
        return None

    def record(self, connection: Connection, batch: Span, failed: str | None) -> None:
        """Records that a batch was applied. Call it last in the transaction."""
        connection.execute(
            f"update {BATCHES} set lineage = %s, batch_id = %s, prev_tick_id = %s, tick_id = %s,"
            " fingerprint = %s, failed = %s, applied_at = now()"
            " where queue = %s and consumer = %s".encode(),
            (
                batch.incarnation,
                batch.batch_id,
                batch.prev_tick_id,
                batch.tick_id,
                batch.fingerprint,
                failed,
                *self._key,
            ),
        )

    def forget(self, connection: Connection) -> None:
        """Forgets which batch was applied last, so that any batch may be the next."""
        connection.execute(
            f"update {BATCHES} set batch_id = null, prev_tick_id = null, tick_id = null,"
            " fingerprint = null, failed = null where queue = %s and consumer = %s".encode(),
            self._key,
        )
        if self._has_event_table(connection):
            connection.execute(
                f"delete from {EVENTS} where queue = %s and consumer = %s".encode(), self._key
            )

    def _has_event_table(self, connection: Connection) -> bool:
        found = connection.execute("select to_regclass(%s)", (EVENTS,)).fetchone()
        return found != (None,)

    def _select(self, connection: Connection, lock: str) -> Completed | None:
        row = connection.execute(
            "select lineage, batch_id, prev_tick_id, tick_id, fingerprint, failed"
            f" from {BATCHES} where queue = %s and consumer = %s {lock}".encode(),
            self._key,
        ).fetchone()
        return Completed(*row) if row else None

    def _take_lock(self, connection: Connection) -> Completed:
        """Locks the row after the session that holds it ended, or was terminated."""
        # A locked row names the transaction that holds the lock, and pg_locks names its session.
        # Savepoints have numbers of their own, so the lock is never taken in one.
        holders = (
            f" from {BATCHES} c join pg_locks l on l.locktype = 'transactionid' and l.granted"
            " and l.transactionid = c.xmax where c.queue = %s and c.consumer = %s"
        )
        pids = connection.execute(f"select l.pid{holders}".encode(), self._key).fetchall()
        with suppress(psycopg.errors.InsufficientPrivilege), connection.transaction():
            connection.execute(f"select pg_terminate_backend(l.pid){holders}".encode(), self._key)
        set_timeout = "select set_config('lock_timeout', %s, true)"
        (before,) = connection.execute("select current_setting('lock_timeout')").fetchall()
        connection.execute(set_timeout, (_LOCK_WAIT,))
        try:
            found = self._select(connection, "for update")
        except psycopg.errors.LockNotAvailable as error:
            raise DatabaseError(
                f"another session of the target holds the row of {self._name} in {BATCHES}: "
                f"process {', '.join(str(pid) for (pid,) in pids) or 'unknown'}",
                "It belongs to an earlier attempt at the batch, which is stopped. End it with "
                "pg_terminate_backend, or have all processes log in to the target as one role.",
            ) from error
        if found is None:
            raise DatabaseError(
                f"the row of {self._name} in {BATCHES} was deleted meanwhile",
                "It is created again when the consumer connects to the target.",
            )
        connection.execute(set_timeout, before)
        return found

    def _out_of_step(
        self, connection: Connection, batch: Span, found: Completed
    ) -> TargetOutOfStep:
        target = connection.info.dbname
        told = (
            f"database {target} has applied {self._name} up to tick {found.tick_id}, and batch "
            f"{batch.batch_id} begins after tick {batch.prev_tick_id}"
        )
        if found.incarnation != batch.incarnation:
            cause = (
                "The database of the queue was restored or failed over, or is another one "
                f"(incarnation {batch.incarnation}; it was {found.incarnation}). "
            )
        elif found.tick_id == batch.prev_tick_id:
            cause = "The tick of that number is another one now. "
        elif (found.tick_id or 0) < batch.prev_tick_id:
            cause = (
                "The target lost its last transactions, or somebody else acked batches of this "
                "consumer. "
            )
        else:
            cause = "The consumer was moved back. "
        return TargetOutOfStep(
            f"{told}; nothing of it was applied or acked",
            f"{cause}To continue where the target ends, call rewind() of the consumer; to apply "
            "this batch to the target as it is, call reset().",
        )
