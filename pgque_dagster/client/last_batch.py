"""The last batch of a consumer that a database has applied, kept as a row in the ledger.

The row names the ticks of the batch, with their fingerprints. So the next batch is applied only if
it begins where the last one ended. If either database lost its last transactions, or the consumer
was moved, the two do not match, and nothing is applied until an operator decides what to do.

The lock on the row makes attempts at a batch wait for each other. So if a suspended process resumes
after another one took over, it finds that the batch is applied.

The first session that connects takes over a row that 0.3.0 wrote into a separate table.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import astuple, dataclass
from typing import LiteralString
from uuid import UUID

import psycopg
from psycopg import sql

from .batch import identity
from .errors import CallRefused, DatabaseError, TargetOutOfStep
from .ledger import LOCK_WAIT, NAME, PURPOSE, prepare_ledger
from .models import Lease
from .rights import Connection, needing
from .session import Session

# The tables of 0.3.0: the last batches, and the events of batches that it applied one by one.
_EARLIER = "pgque_completed_batch"
_EARLIER_EVENTS = "pgque_completed_event"
# Marks the row of the earlier table once it is taken over: processes of that version stop there.
_TAKEN_OVER = -1
_RIGHTS = "select, insert, update"


@dataclass(frozen=True)
class Span:
    """A batch, and the ticks between which it lies.

    Attributes:
        incarnation: the incarnation of the queue's database.
        prev_fingerprint: distinguishes the tick before the batch from others of the same number.
        fingerprint: does the same for the tick that ends it.
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
class Applied:
    """The last batch of a consumer that a database has applied; all None before the first one.

    Attributes:
        failed: which of its events failed, as `FailedMessages.dump` wrote them.
    """

    incarnation: UUID | None = None
    batch_id: int | None = None
    prev_tick_id: int | None = None
    tick_id: int | None = None
    fingerprint: str | None = None
    failed: str | None = None

    def is_(self, batch: Span) -> bool:
        """Returns whether it is this batch."""
        return (self.batch_id, self.prev_tick_id, self.tick_id, self.fingerprint) == (
            batch.batch_id,
            batch.prev_tick_id,
            batch.tick_id,
            batch.fingerprint,
        )

    def precedes(self, batch: Span) -> bool:
        """Returns whether the batch begins where this one ended."""
        return self.tick_id is None or (self.tick_id, self.fingerprint) == (
            batch.prev_tick_id,
            batch.prev_fingerprint,
        )


# The ledgers that the role may read, in the order of the search_path.
_LEDGERS = """
select n.nspname::text
from unnest(current_schemas(false)) with ordinality path (schema, place)
join pg_namespace n on n.nspname = path.schema
join pg_class c on c.relnamespace = n.oid and c.relname = %s
where has_table_privilege(c.oid, 'select')
order by path.place
"""


class LastBatch:
    """The row of a consumer that records its last applied batch.

    Args:
        connection: to the target, outside a transaction. If the table or the row is missing, it is
            created in the first schema of the search_path. A row in a later schema of it stays in
            use.
        queue: the queue's name.
        consumer: the consumer's name.

    Raises:
        PermissionDenied: if the table or its columns are missing and the role may not create them,
            or if the role may not write to it.
        DatabaseError: if a process of 0.3.0 holds the consumer's row.
    """

    def __init__(self, connection: Connection, queue: str, consumer: str) -> None:
        self._db = connection
        self._name = f"{queue}/{consumer}"
        self._earlier = sql.SQL("queue = {} and consumer = {}").format(queue, consumer)
        self._has_earlier_events = self._has_table(_EARLIER_EVENTS)
        key = (f"queue {queue}", f"consumer {consumer}")
        self._where = sql.SQL("sink = {} and batch = {}").format(*key)
        schema = self._schema()
        self._table = sql.Identifier(*([schema] if schema else []), NAME)
        insert = sql.SQL(
            "insert into {} (sink, batch) values ({}, {}) on conflict do nothing"
        ).format(self._table, *key)
        prepare_ledger(connection, schema, _RIGHTS, for_consumers=True)
        with needing(connection, _RIGHTS, self._table.as_string(connection), PURPOSE):
            connection.execute(sql.SQL("explain {}").format(self._writing(Applied())))
            connection.execute(sql.SQL("explain {}").format(insert))
            # Only if it is missing, because an insert waits for a transaction that changes the row.
            if self._find() is None:
                connection.execute(insert)
        if self._has_table(_EARLIER):
            self._take_over()

    def _has_table(self, name: str) -> bool:
        return self._db.execute("select to_regclass(%s)", (name,)).fetchone() != (None,)

    def _schema(self) -> str | None:
        """Returns the schema of the ledger with the row, or the first schema of the search_path.

        Raises:
            CallRefused: if two ledgers have the row.
        """
        found = [
            name
            for (name,) in self._db.execute(_LEDGERS, (NAME,)).fetchall()
            if self._db.execute(
                sql.SQL("select from {} where {}").format(sql.Identifier(name, NAME), self._where)
            ).fetchall()
        ]
        if len(found) > 1:
            raise CallRefused(
                f"the tables {NAME} of the schemas {', '.join(found)} both have a row of "
                f"{self._name}",
                "Find out which one says what was applied last, and delete the other row.",
            )
        if found:
            return str(found[0])
        ((first,),) = self._db.execute("select current_schema()::text").fetchall()
        return None if first is None else str(first)

    def _take_over(self) -> None:
        """Moves what 0.3.0 recorded into the row, so that both versions know who continues."""
        earlier = sql.SQL("{} where {}").format(sql.Identifier(_EARLIER), self._earlier)
        columns = "lineage, batch_id, prev_tick_id, tick_id, fingerprint, failed"
        read = sql.SQL(f"select {columns} from {{}} for update").format(earlier)
        stop = sql.SQL("update {} set tick_id = {} where {}").format(
            sql.Identifier(_EARLIER), _TAKEN_OVER, self._earlier
        )
        try:
            with (
                needing(self._db, "select, update", _EARLIER, "which 0.3.0 wrote"),
                self._db.transaction(),
            ):
                self._db.execute("select set_config('lock_timeout', %s, true)", (LOCK_WAIT,))
                found = self._db.execute(read).fetchone()
                applied = Applied(*found) if found else Applied(tick_id=_TAKEN_OVER)
                if applied.tick_id == _TAKEN_OVER:
                    return
                self._db.execute(stop)
                if applied.tick_id is not None:
                    self._write(applied)
        except psycopg.errors.LockNotAvailable as error:
            raise DatabaseError(
                f"a process of 0.3.0 holds the row of {self._name} in {_EARLIER}",
                "Stop the consumer's processes of 0.3.0; pg_terminate_backend ends their sessions.",
            ) from error

    def read(self) -> Applied:
        """Returns the last batch that was applied."""
        return self._find() or Applied()

    def take(self, check_lease: Callable[[], object]) -> Applied:
        """Locks the row until the end of the transaction. Call it first in the transaction.

        If the holder of the lock is an attempt that lost its lease, such as a suspended process,
        its session is terminated.

        Args:
            check_lease: raises if this attempt has lost the lease in the queue's database.

        Returns:
            The last batch that was applied.

        Raises:
            DatabaseError: if another session holds the lock and cannot be terminated.
        """
        found = self._find("for update skip locked")
        if found is not None:
            return found
        check_lease()
        holders = self._terminate_holders()
        place = f"the row of {self._name} in {self._table.as_string(self._db)}"
        set_timeout = "select set_config('lock_timeout', %s, true)"
        (before,) = self._db.execute("select current_setting('lock_timeout')").fetchall()
        self._db.execute(set_timeout, (LOCK_WAIT,))
        try:
            found = self._find("for update")
        except psycopg.errors.LockNotAvailable as error:
            raise DatabaseError(
                f"another session of the target holds {place}: process "
                f"{', '.join(holders) or 'unknown'}",
                "It belongs to an earlier, suspended attempt at the batch. End it with "
                "pg_terminate_backend, or have all processes log in to the target as one role.",
            ) from error
        if found is None:
            raise DatabaseError(
                f"{place} was deleted meanwhile",
                "It is created again when the consumer connects to the target.",
            )
        self._db.execute(set_timeout, before)
        return found

    def lock(self, batch: Span, check_lease: Callable[[], object]) -> Applied | None:
        """Locks the row as `take` does. Returns the batch if it is already applied; otherwise None.

        Raises:
            TargetOutOfStep: if the batch does not follow the last one that was applied, or a
                version before 0.4 applied part of it.
            DatabaseError: as for `take`.
        """
        self._check_earlier_events()
        found = self.take(check_lease)
        if found.is_(batch):
            return found
        if not found.precedes(batch):
            # A suspended attempt resumed after another one took over. This needs no fix.
            check_lease()
            raise self._out_of_step(batch, found)
        return None

    def record(self, batch: Span, failed: str | None) -> None:
        """Records that a batch was applied. Call it last in the transaction."""
        self._write(
            Applied(
                batch.incarnation,
                batch.batch_id,
                batch.prev_tick_id,
                batch.tick_id,
                batch.fingerprint,
                failed,
            )
        )

    def forget(self) -> None:
        """Forgets which batch was applied last, so that any batch may be the next."""
        with self._db.transaction():
            self._write(Applied(self.read().incarnation))
            if self._has_earlier_events:
                self._db.execute(
                    sql.SQL("delete from {} where {}").format(
                        sql.Identifier(_EARLIER_EVENTS), self._earlier
                    )
                )

    def _check_earlier_events(self) -> None:
        """Checks that no earlier version applied part of a batch, event by event.

        Raises:
            TargetOutOfStep: if one did, because the next batch has events that are already applied.
        """
        if not self._has_earlier_events:
            return
        count = sql.SQL("select batch_id, count(*) from {} where {} group by 1 order by 1")
        row = self._db.execute(
            count.format(sql.Identifier(_EARLIER_EVENTS), self._earlier)
        ).fetchone()
        if row is not None:
            raise TargetOutOfStep(
                f"database {self._db.info.dbname} has applied {row[1]} events of batch {row[0]} "
                f"of {self._name}, event by event, and not the whole batch; nothing was applied or "
                "acked",
                "Run the version before 0.4 until that batch is acked. Or compare the data, then "
                "call reset() on the consumer to apply the next batch as it is.",
            )

    def _find(self, lock: LiteralString = "") -> Applied | None:
        """Returns the row's content; None if the row does not exist or cannot be locked."""
        row = self._db.execute(
            sql.SQL(
                "select incarnation, batch_id, prev_tick_id, tick_id, fingerprint, failed"
                " from {} where {} " + lock
            ).format(self._table, self._where)
        ).fetchone()
        return Applied(*row) if row else None

    def _write(self, applied: Applied) -> None:
        self._db.execute(self._writing(applied))

    def _writing(self, applied: Applied) -> sql.Composed:
        return sql.SQL(
            "update {} set incarnation = {}, batch_id = {}, prev_tick_id = {}, tick_id = {},"
            " fingerprint = {}, failed = {}, applied_at = now() where {}"
        ).format(self._table, *astuple(applied), self._where)

    def _terminate_holders(self) -> list[str]:
        """Terminates the sessions that hold the row's lock, if allowed; returns their processes."""
        # A locked row names the transaction that holds it, and pg_locks names its session. The
        # lock is never taken in a savepoint, because savepoints have their own numbers.
        holders = sql.SQL(
            " from {} c join pg_locks l on l.locktype = 'transactionid' and l.granted"
            " and l.transactionid = c.xmax where {}"
        ).format(self._table, self._where)
        pids = self._db.execute(sql.SQL("select l.pid::text") + holders).fetchall()
        with suppress(psycopg.errors.InsufficientPrivilege), self._db.transaction():
            self._db.execute(sql.SQL("select pg_terminate_backend(l.pid)") + holders)
        return [pid for (pid,) in pids]

    def of_another_life(self, batch: Span, found: Applied) -> TargetOutOfStep:
        """Returns the error for a replica of another incarnation of the queue's database."""
        return TargetOutOfStep(
            f"the replicas of {self._name} in database {self._db.info.dbname} are from another "
            f"incarnation of the queue's database, {found.incarnation}; this one is "
            f"{batch.incarnation}",
            "It was restored or failed over, or is another one. If this one continues and the "
            f"other does not, run in the target: update {self._table.as_string(self._db)} set "
            f"incarnation = '{batch.incarnation}' where {self._where.as_string(self._db)}; "
            "the tables are copied again.",
        )

    def _out_of_step(self, batch: Span, found: Applied) -> TargetOutOfStep:
        told = (
            f"database {self._db.info.dbname} has applied {self._name} up to tick {found.tick_id}, "
            f"and batch {batch.batch_id} begins after tick {batch.prev_tick_id}"
        )
        if found.incarnation != batch.incarnation:
            cause = (
                "The database of the queue was restored or failed over, or is another one "
                f"(incarnation {batch.incarnation}; it was {found.incarnation}). "
            )
        elif found.tick_id == batch.prev_tick_id:
            cause = "The tick with that number is a different one now. "
        elif (found.tick_id or 0) < batch.prev_tick_id:
            cause = (
                "The target lost its last transactions, or another process acked batches of this "
                "consumer. "
            )
        else:
            cause = "The consumer was moved back. "
        return TargetOutOfStep(
            f"{told}; nothing of it was applied or acked",
            f"{cause}To continue where the target ends, call rewind() on the consumer; to apply "
            "this batch to the target as it is, call reset().",
        )
