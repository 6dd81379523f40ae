"""Which batch of a consumer a database has applied last, by a row in the ledger.

The row names the ticks of the batch, with their fingerprints. So the next batch is applied only if
it begins where the last one ended: if either database lost its last transactions, or the consumer
was moved, the two do not meet, and nothing is applied until somebody decides.

The lock on the row makes attempts at a batch wait for each other, so a process that was stopped and
goes on after another one took over finds the batch applied.

A row that a version before 0.4 wrote into a table of its own is taken over under its lock, in the
first transaction that takes the row.
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
from .ledger import LOCK_WAIT, NAME, PURPOSE, add_missing_columns, create_missing_ledger
from .models import Lease
from .rights import Connection, needing
from .session import Session

_EARLIER = "pgque_completed_batch"
# Batches that a version before 0.4 applied event by event.
_EARLIER_EVENTS = "pgque_completed_event"
# In the row of the earlier table, once it is taken over: processes of that version stop there.
_TAKEN_OVER = -1
_RIGHTS = "select, insert, update"


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
class Applied:
    """The last batch of a consumer that a database has applied; all None before the first one.

    Attributes:
        failed: which events of it failed, as `Failed.dump` wrote it.
    """

    incarnation: UUID | None = None
    batch_id: int | None = None
    prev_tick_id: int | None = None
    tick_id: int | None = None
    fingerprint: str | None = None
    failed: str | None = None

    def is_(self, batch: Span) -> bool:
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
    """The row of a consumer, which says where the database ends.

    Args:
        connection: of the database, outside of a transaction. The table and the row are created if
            they are missing, in the first schema of its search_path. A row in a later schema of it
            stays in use.
        queue: the queue's name.
        consumer: the consumer's name.

    Raises:
        PermissionDenied: if the table or its columns are missing and the role may not create them,
            or if the role may not write to it.
    """

    def __init__(self, connection: Connection, queue: str, consumer: str) -> None:
        self._db = connection
        self._name = f"{queue}/{consumer}"
        self._earlier_key = {"queue": queue, "consumer": consumer}
        self._earlier, self._earlier_events = (
            _Row(connection, sql.Identifier(name), self._earlier_key, "lineage")
            if connection.execute("select to_regclass(%s)", (name,)).fetchone() != (None,)
            else None
            for name in (_EARLIER, _EARLIER_EVENTS)
        )
        key = {"sink": f"queue {queue}", "batch": f"consumer {consumer}"}
        schema = self._schema(key)
        table = sql.Identifier(*([schema] if schema else []), NAME)
        self._row = _Row(connection, table, key, "incarnation")
        create_missing_ledger(connection, schema, _RIGHTS)
        add_missing_columns(connection, self._row.table)
        with needing(connection, _RIGHTS, self._row.table.as_string(connection), PURPOSE):
            connection.execute(sql.SQL("explain {}").format(self._row.writing(Applied())))
            connection.execute(sql.SQL("explain {}").format(self._row.inserting()))
            # Only then, because an insert waits for a transaction that changes the row.
            if self._row.read() is None:
                connection.execute(self._row.inserting())

    def _schema(self, key: dict[str, str]) -> str | None:
        """Returns the schema of the ledger with the row, or the first one of the search_path.

        Raises:
            CallRefused: if two ledgers have the row.
        """
        found = [
            name
            for (name,) in self._db.execute(_LEDGERS, (NAME,)).fetchall()
            if self._db.execute(
                sql.SQL("select from {} where sink = %s and batch = %s").format(
                    sql.Identifier(name, NAME)
                ),
                (key["sink"], key["batch"]),
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

    def read(self) -> Applied:
        """Returns the last batch that was applied."""
        earlier = self._earlier.read() if self._earlier else None
        if earlier is not None and earlier.tick_id not in (None, _TAKEN_OVER):
            return earlier
        return self._row.read() or Applied()

    def take(self, check_lease: Callable[[], object]) -> Applied:
        """Locks the row until the end of the transaction. Call it first in the transaction.

        If a session holds the lock that belongs to an attempt which lost its lease, such as a
        process that is stopped, it is terminated.

        Args:
            check_lease: raises if this attempt has lost the lease in the queue's database.

        Returns:
            The last batch that was applied.

        Raises:
            DatabaseError: if another session holds the lock and cannot be terminated.
        """
        found = self._take(self._row, check_lease)
        if self._earlier is None or self._earlier.read() is None:
            return found
        earlier = self._take(self._earlier, check_lease)
        if earlier.tick_id == _TAKEN_OVER:
            return found
        self._earlier.write(Applied(tick_id=_TAKEN_OVER))
        if earlier.tick_id is None:
            return found
        self._row.write(earlier)
        return earlier

    def take_over(self, check_lease: Callable[[], object]) -> None:
        """Takes the row of an earlier version over, in a transaction of its own.

        For a caller whose transaction may end with an error that tells somebody to change the row.
        """
        if self._earlier is not None:
            with self._db.transaction():
                self.take(check_lease)

    def lock(self, batch: Span, check_lease: Callable[[], object]) -> Applied | None:
        """Locks the row as `take` does. Returns the batch, if it is applied already; else None.

        Raises:
            TargetOutOfStep: if the batch does not follow the last one that was applied, or a
                version before 0.4 applied a part of it.
            DatabaseError: as for `take`.
        """
        self._check_earlier_events()
        found = self.take(check_lease)
        if found.is_(batch):
            return found
        if not found.precedes(batch):
            # An attempt that was stopped while others went on is late, which nobody must mend.
            check_lease()
            raise self._out_of_step(batch, found)
        return None

    def record(self, batch: Span, failed: str | None) -> None:
        """Records that a batch was applied. Call it last in the transaction."""
        self._row.write(
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
            self._row.write(Applied(self.read().incarnation))
            if self._earlier is not None:
                self._earlier.write(Applied(tick_id=_TAKEN_OVER))
            if self._earlier_events is not None:
                delete = sql.SQL("delete from {} where {}")
                events = self._earlier_events
                self._db.execute(delete.format(events.table, events.condition))

    def _check_earlier_events(self) -> None:
        """Checks that no batch was applied in part, event by event, by an earlier version.

        Raises:
            TargetOutOfStep: if one was, so that the next batch has events that were applied.
        """
        if self._earlier_events is None:
            return
        select = sql.SQL("select batch_id, count(*) from {} where {} group by 1 order by 1")
        events = self._earlier_events
        row = self._db.execute(select.format(events.table, events.condition)).fetchone()
        if row is not None:
            raise TargetOutOfStep(
                f"database {self._db.info.dbname} has applied {row[1]} events of batch {row[0]} "
                f"of {self._name}, event by event, and not the whole batch; nothing was applied or "
                "acked",
                "Run the version before 0.4 until that batch is acked. Or compare the data, then "
                "call reset() of the consumer to apply the next batch as it is.",
            )

    def of_another_life(self, batch: Span, found: Applied) -> TargetOutOfStep:
        """Returns the error for a replica of another life of the queue's database."""
        return TargetOutOfStep(
            f"the replicas of {self._name} in database {self._db.info.dbname} are those of another "
            f"incarnation of the queue's database, {found.incarnation}; this one is "
            f"{batch.incarnation}",
            "It was restored or failed over, or is another one. If this one goes on, and the other "
            f"one does not, run in the target: update {self._row.table.as_string(self._db)} set "
            f"incarnation = '{batch.incarnation}' where {self._row.condition.as_string(self._db)}; "
            "the tables are copied again.",
        )

    def _take(self, row: "_Row", check_lease: Callable[[], object]) -> Applied:
        """Locks a row; after the session that holds its lock ended, or was terminated."""
        found = row.read("for update skip locked")
        if found is not None:
            return found
        check_lease()
        holders = row.terminate_holders()
        set_timeout = "select set_config('lock_timeout', %s, true)"
        (before,) = self._db.execute("select current_setting('lock_timeout')").fetchall()
        self._db.execute(set_timeout, (LOCK_WAIT,))
        try:
            found = row.read("for update")
        except psycopg.errors.LockNotAvailable as error:
            raise DatabaseError(
                f"another session of the target holds the row of {self._name} in "
                f"{row.table.as_string(self._db)}: process {', '.join(holders) or 'unknown'}",
                "It belongs to an earlier attempt at the batch, which is stopped. End it with "
                "pg_terminate_backend, or have all processes log in to the target as one role.",
            ) from error
        if found is None:
            raise DatabaseError(
                f"the row of {self._name} in {row.table.as_string(self._db)} was deleted meanwhile",
                "It is created again when the consumer connects to the target.",
            )
        self._db.execute(set_timeout, before)
        return found

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


class _Row:
    """The row of a consumer in a table.

    Args:
        connection: of the database.
        table: the table.
        key: the row's key.
        incarnation: the name of the column for the incarnation.
    """

    def __init__(
        self, connection: Connection, table: sql.Identifier, key: dict[str, str], incarnation: str
    ) -> None:
        self._db = connection
        self.table = table
        self._key = key
        self._incarnation = sql.Identifier(incarnation)
        self.condition = sql.SQL(" and ").join(
            sql.SQL("{} = {}").format(sql.Identifier(name), value) for name, value in key.items()
        )

    def read(self, lock: LiteralString = "") -> Applied | None:
        """Returns what the row says; None if there is no such row, or none that can be locked."""
        row = self._db.execute(
            sql.SQL(
                "select {}, batch_id, prev_tick_id, tick_id, fingerprint, failed from {} where {} "
                + lock
            ).format(self._incarnation, self.table, self.condition)
        ).fetchone()
        return Applied(*row) if row else None

    def write(self, applied: Applied) -> None:
        """Changes the row."""
        self._db.execute(self.writing(applied))

    def writing(self, applied: Applied) -> sql.Composed:
        """Returns the statement that changes the row."""
        return sql.SQL(
            "update {} set {} = {}, batch_id = {}, prev_tick_id = {}, tick_id = {},"
            " fingerprint = {}, failed = {}, applied_at = now() where {}"
        ).format(self.table, self._incarnation, *astuple(applied), self.condition)

    def inserting(self) -> sql.Composed:
        """Returns the statement that inserts the row, unless it is there."""
        return sql.SQL("insert into {} ({}) values ({}) on conflict do nothing").format(
            self.table,
            sql.SQL(", ").join(map(sql.Identifier, self._key)),
            sql.SQL(", ").join(map(sql.Literal, self._key.values())),
        )

    def terminate_holders(self) -> list[str]:
        """Terminates the sessions that hold the row's lock, if allowed; returns their processes."""
        # A locked row names the transaction that holds the lock, and pg_locks names its session.
        # Savepoints have numbers of their own, so the lock is never taken in one.
        holders = sql.SQL(
            " from {} c join pg_locks l on l.locktype = 'transactionid' and l.granted"
            " and l.transactionid = c.xmax where {}"
        ).format(self.table, self.condition)
        pids = self._db.execute(sql.SQL("select l.pid::text") + holders).fetchall()
        with suppress(psycopg.errors.InsufficientPrivilege), self._db.transaction():
            self._db.execute(sql.SQL("select pg_terminate_backend(l.pid)") + holders)
        return [pid for (pid,) in pids]
