"""A relay moves the changes of a slot into a queue, in one transaction with its position.

A tick of the queue has a snapshot. All transactions that the snapshot sees had committed before, so
the WAL has them up to a position that is read after it. The transaction with that snapshot inserts
the changes of the slot up to that position, and the tick. An event has the id of the
transaction that made the change. So the events up to a tick are those of the transactions that its
snapshot sees, as with triggers. A session that makes a tick relays first; a lock admits one at a
time.

The slot discards changes before a position once a later position was streamed. If the server only
streams what standbys have (`synchronized_standby_slots`), their slot is not ahead of their queue.

The WAL lacks long values that an update did not change. They are read in the snapshot of the
transaction that inserts the event, or in a later one if that snapshot does not see the update. If
the value has changed since, a later event before the next tick has it, and only the last event of a
key before a tick counts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from time import sleep

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from ..errors import ConnectionFailed, InvalidArgument, passes
from ..rights import Connection
from .changes import Changes, Column, Lacking, Relation
from .stream import Stream, lsn, session

# About this many changes are inserted in one transaction, which ends with a source transaction.
_CHANGES = 200_000
_ROWS, _BYTES = 5_000, 2**22
# This much WAL without changes is held.
_HELD = 2**24
_PAUSE = 0.01
_STATE = """
select publication, slot, problem, lsn, wal, flushed, next_id, snapshot, is_due, event_table
from pgque.relay_state(%s)
"""
_LOCK = sql.SQL("select pg_advisory_lock(hashtextextended('pgque relay ' || {}, 0))")
_MOVE = "select pgque.relay_to(%s, %s::text::pg_lsn, %s)"
_WANTED = """
select exists (select from pg_locks
               where locktype = 'advisory' and not granted and objsubid = 1
                 and (classid::bigint << 32 | objid::bigint)
                     = hashtextextended('pgque relay ' || %s, 0))
"""
_RELATION = """
select pgque.capture_table(root), pgque.key_of_table(root), root <> %(oid)s, array(
    select coalesce(p.proname, '') from unnest(%(types)s::oid[]) with ordinality t (type, number)
    left join pg_type y on y.oid = t.type
    left join pg_proc p on p.oid = y.typoutput
    order by number)
from coalesce(pg_partition_root(%(oid)s::oid), %(oid)s::oid) root
"""
_KEY_TYPES = """
select array(select format_type(a.atttypid, a.atttypmod)
             from unnest(%s::text[]) with ordinality k (name, number)
             join pg_attribute a on a.attrelid = %s::regclass and a.attname = k.name
             order by number)
"""
# The catalog in the snapshot, and the current one.
_IS_SAME = """
select bool_and(c.relfilenode = coalesce(pg_relation_filenode(c.oid), 0))
from pgque.capture_relations(%s::regclass) r join pg_class c on c.oid = r
"""


@dataclass(frozen=True)
class _State:
    """The position of a relay, and the snapshot of its current transaction."""

    publication: str
    slot: str
    problem: str | None
    position: int
    wal: int
    flushed: int
    next_id: int
    snapshot: str
    is_due: bool
    event_table: str

    def sees(self, transaction: int) -> bool:
        """Returns whether a committed transaction is in the snapshot."""
        first, end, running = self.snapshot.split(":")
        if transaction >= int(end):
            return False
        return transaction < int(first) or str(transaction) not in running.split(",")


@dataclass(frozen=True)
class Moved:
    """What one transaction of a relay did.

    Attributes:
        events: how many events it inserted.
        tick_id: the tick that it made; None if it made none.
        is_complete: whether the queue has all changes that its snapshot sees.
    """

    events: int
    tick_id: int | None
    is_complete: bool


class Relay:
    """Moves changes into a queue, with three connections.

    Args:
        writer: inserts events.
        helper: runs statements that cannot run in the writer's transaction.
        streaming: holds the lock, and streams.
    """

    def __init__(
        self, url: str, queue: str, writer: Connection, helper: Connection, streaming: Connection
    ) -> None:
        self._url, self._queue = url, queue
        self._writer, self._helper = writer, helper
        self._columns: dict[int, Sequence[Column]] = {}
        state = self._state()
        self._position = state.position
        self._stream = Stream.of(streaming, state.publication, state.slot, state.position)

    @staticmethod
    @contextmanager
    def of(url: str, queue: str) -> Iterator["Relay"]:
        """Opens the connections of a relay. While the block runs, no other relay moves changes."""
        streaming = make_conninfo(url, replication="database")
        with session(url) as writer, session(url) as helper, session(streaming) as stream:
            # If this process stalls, the server ends this session, and with it the lock.
            stream.execute(_LOCK.format(queue))
            # The queue must durably have the changes that the slot discards.
            writer.execute("set synchronous_commit = on")
            helper.execute("set synchronous_commit = local")
            yield Relay(url, queue, writer, helper, stream)

    def is_wanted(self) -> bool:
        """Returns whether another session waits to move changes."""
        ((is_wanted,),) = self._helper.execute(_WANTED, (self._queue,)).fetchall()
        return bool(is_wanted)

    def tick(self, within: Callable[[Connection], object] = lambda connection: None) -> int:
        """Moves all committed changes, and makes a tick.

        Args:
            within: is called with the tick's transaction before it commits.
        """
        while not self.move().is_complete:
            pass
        found = self.move(tick=True, within=within)
        assert found.tick_id is not None
        return found.tick_id

    def move(
        self,
        *,
        tick: bool = False,
        within: Callable[[Connection], object] = lambda connection: None,
    ) -> Moved:
        """Moves committed changes: all of them if it makes a tick.

        Args:
            tick: whether it makes a tick that is not due.
            within: is called with its transaction before it commits.
        """
        with self._writer.transaction():
            self._writer.execute("set transaction isolation level repeatable read")
            state = self._state()
            if state.position != self._position:
                raise ConnectionFailed("another relay took over, because this one stalled")
            if state.flushed < state.wal:
                # The server only streams WAL that is on disk. A commit flushes it.
                self._helper.execute("select pg_logical_emit_message(true, 'pgque', '')")
            changes, is_complete = self._insert(state, None if tick else _CHANGES)
            self._stream.confirm(state.position)
            end = max(state.position, changes.end, state.wal if is_complete else 0)
            has_moved = bool(changes.count) or end - state.position > _HELD
            tick_id = None
            if has_moved or tick or (state.is_due and is_complete):
                values = (self._queue, lsn(end), tick if is_complete else None)
                ((tick_id,),) = self._writer.execute(_MOVE, values).fetchall()
                has_moved = True
            within(self._writer)
        if has_moved:
            self._position = end
        return Moved(changes.count, tick_id, is_complete)

    def _state(self) -> _State:
        rows = self._writer.execute(_STATE, (self._queue,)).fetchall()
        if not rows:
            raise InvalidArgument(
                f"the tables of queue {self._queue} are not captured from the WAL"
            )
        state = _State(*rows[0])
        if state.problem is not None:
            raise InvalidArgument(
                f"queue {self._queue} lacks changes: {state.problem}",
                f"Run `pgque relay {self._queue} --drop` and start it again: then its tables are "
                "copied again.",
            )
        return state

    def _insert(self, state: _State, limit: int | None) -> tuple[Changes, bool]:
        """Inserts the slot's changes. Returns them without rows, and whether these are all."""
        changes = Changes(self._find, self._columns, state.next_id)
        for message in self._stream.until(state.wal):
            changes.take(message)
            if len(changes.rows) >= _ROWS or changes.size >= _BYTES:
                self._copy(changes, state)
            if limit is not None and changes.count >= limit and message[:1] == b"C":
                self._copy(changes, state)
                return changes, False
        self._copy(changes, state)
        return changes, True

    def _copy(self, changes: Changes, state: _State) -> None:
        if not changes.rows:
            return
        groups: dict[tuple[int, bool], list[Lacking]] = {}
        for each in changes.lacking:
            group = id(each.relation), state.sees(each.transaction)
            groups.setdefault(group, []).append(each)
        for (_, is_seen), lacking in groups.items():
            if is_seen:
                _complete(changes, lacking, self._writer)
            else:
                with self._seeing({each.transaction for each in lacking}) as connection:
                    _complete(changes, lacking, connection)
        columns = "(ev_time, ev_txid, ev_type, ev_data, ev_extra1)"
        query = f"copy {state.event_table} {columns} from stdin"
        with self._writer.cursor().copy(query.encode()) as copy:
            copy.write("".join(changes.rows))
        changes.empty()

    @contextmanager
    def _seeing(self, transactions: Set[int]) -> Iterator[Connection]:
        """Opens a connection with a snapshot that sees transactions whose commit is in the WAL."""
        with session(self._url) as connection:
            while not all(
                seen
                for (seen,) in connection.execute(
                    "select pg_visible_in_snapshot(x::text::xid8, pg_current_snapshot())"
                    " from unnest(%s::bigint[]) x",
                    (list(transactions),),
                )
            ):
                sleep(_PAUSE)
            with connection.transaction():
                connection.execute("set transaction isolation level repeatable read, read only")
                yield connection

    def _find(self, oid: int, columns: Sequence[Column]) -> Relation:
        """Finds the relation of a message."""
        values = {"oid": oid, "types": [each.type for each in columns]}
        ((table, key, is_partition, outputs),) = self._writer.execute(_RELATION, values).fetchall()
        names = [each.name for each in columns]
        numbers = [names.index(each) for each in key or () if each in names]
        # A dropped table has no name, and no replica.
        return Relation(table or f"dropped.{oid}", names, outputs, numbers, is_partition)


def _complete(changes: Changes, lacking: Sequence[Lacking], connection: Connection) -> None:
    """Completes rows of one relation with the values that they lack; or requests copies."""
    try:
        with connection.transaction():
            found = _missing_values(connection, lacking)
    except psycopg.Error as error:
        if passes(error) and not isinstance(error, psycopg.errors.InsufficientPrivilege):
            raise
        # For example, the table was altered since, or a right is missing, which a copy reports.
        found = None
    for number, each in enumerate(lacking, 1):
        if found is None:
            changes.request_copy(each)
        else:
            # A missing row was deleted since.
            changes.complete(each, found.get(number, {}))


def _missing_values(
    connection: Connection, lacking: Sequence[Lacking]
) -> dict[int, Mapping[int, str]] | None:
    """Returns values of rows by their number and the column's; None if the table was rewritten."""
    relation = lacking[0].relation
    names = [relation.columns[number] for number in relation.key]
    numbers = sorted({number for each in lacking for number in each.missing})
    ((types,),) = connection.execute(_KEY_TYPES, (names, relation.table)).fetchall()
    parts = [sql.Identifier(f"pgque_k{number}") for number in range(len(names))]
    query = sql.SQL(
        "select pgque_key.pgque_nr, {values} from {table} pgque_row"
        " join unnest({keys}) with ordinality pgque_key ({parts}, pgque_nr) on {same}"
    ).format(
        values=sql.SQL(", ").join(
            sql.SQL("concat(pgque_row.{})").format(sql.Identifier(relation.columns[number]))
            for number in numbers
        ),
        table=sql.SQL(relation.table),
        keys=sql.SQL(", ").join(
            sql.SQL("{}::text[]").format([each.values[number] for each in lacking])
            for number in relation.key
        ),
        parts=sql.SQL(", ").join(parts),
        same=sql.SQL(" and ").join(
            sql.SQL("pgque_row.{} = pgque_key.{}::{}").format(sql.Identifier(n), part, sql.SQL(t))
            for n, part, t in zip(names, parts, types, strict=True)
        ),
    )
    found: dict[int, Mapping[int, str]] = {
        number: dict(zip(numbers, values, strict=True))
        for number, *values in connection.execute(query)
    }
    ((is_same,),) = connection.execute(_IS_SAME, (relation.table,)).fetchall()
    return found if is_same else None
