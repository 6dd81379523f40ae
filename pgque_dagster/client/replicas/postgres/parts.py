"""Copies a large table in parts into a table of the target.

A part's rows and its record are stored in one transaction.
"""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from hashlib import md5
from typing import Any

from psycopg import sql

from ...batch import Batch
from ...ledger import LOCK_WAIT
from ...plans import of_table
from ...rights import Connection
from ..parts import PartedCopy, from_clauses, seen_after
from ..snapshot import reading
from ..source import SourceTable
from ..standing import Log
from .location import PostgresReplicas, connected_target
from .staging import pipe, stage_events
from .table import TargetTable, create_stages

# How many connections copy parts at once. A part keeps one core of each server busy.
WORKERS = 2
_END_WRITERS = """
select pg_terminate_backend(a.pid)
from pg_locks l join pg_stat_activity a using (pid)
where l.relation = any (array[to_regclass(%s), to_regclass(%s)]) and l.database = a.datid
  and l.mode = 'RowExclusiveLock' and a.usename = current_user and a.pid <> pg_backend_pid()
"""
_DONE = """
select coalesce(array_agg(part), '{{}}'), coalesce(sum(row_count), 0)::bigint,
       coalesce(sum(byte_count), 0)::bigint
from {}
"""


class StagedCopy:
    """A copy in parts in the target: a table of rows, and one of records.

    Attributes:
        rows_in: the table of rows.
        records: the table of records. Its comment says how the copy began.
        begun: how the copy began; empty if there is none.
        done: the parts that are done.
        rows: how many rows they have.
        size: the number of bytes of text in these rows.
    """

    done: set[int]
    rows: int
    size: int

    def __init__(self, connection: Connection, table: TargetTable) -> None:
        self._db, self._table = connection, table
        name = f"__pgque_copy_{md5(table.replica_of.encode(), usedforsecurity=False).hexdigest()}"
        self.rows_in = sql.Identifier(table.schema, name)
        self.records = sql.Identifier(table.schema, f"{name}_parts")
        self._names = [each.as_string(connection) for each in (self.records, self.rows_in)]
        self.begun: dict[str, Any] = {}
        query = (
            "select obj_description(r, 'pg_class') from to_regclass(%s) r"
            " where num_nulls(r, to_regclass(%s)) = 0"
        )
        for (begun,) in connection.execute(query, self._names).fetchall():
            with suppress(ValueError):
                self.begun = json.loads(begun or "{}")
            self.take_over()
            self.refresh()

    def take_over(self) -> None:
        """Locks the tables, and ends an attempt that lost the lease but still writes parts."""
        self._db.execute(_END_WRITERS, self._names)
        self._db.execute(f"set local lock_timeout to '{LOCK_WAIT}'".encode())
        lock = sql.SQL("lock table {}, {} in share mode").format(self.records, self.rows_in)
        self._db.execute(lock)
        self._db.execute("set local lock_timeout to default")

    def refresh(self) -> None:
        """Reads the records."""
        found = self._db.execute(sql.SQL(_DONE).format(self.records)).fetchall()
        ((done, self.rows, self.size),) = found
        self.done = set(done)

    def begin(self, **begun: Any) -> None:
        """Creates the tables, in place of those of an earlier copy."""
        self.remove()
        self.begun = begun
        self._table.create(self.rows_in)
        columns = "(part integer primary key, row_count bigint, byte_count bigint)"
        self._db.execute(sql.SQL("create table {} " + columns).format(self.records))
        comment = sql.SQL("comment on table {} is {}").format(self.records, json.dumps(begun))
        self._db.execute(comment)
        self.refresh()

    def remove(self) -> None:
        """Drops the tables, if they exist."""
        drop = sql.SQL("drop table if exists {}, {}").format(self.rows_in, self.records)
        self._db.execute(drop)


class CopyInParts(PartedCopy):
    """A copy in parts whose rows are in the target. Its other arguments are those of `PartedCopy`.

    Args:
        there: a connection to the target, in a transaction.
        target: where the replica is.
        table: the replica.
    """

    _kept: StagedCopy

    def __init__(
        self,
        batch: Batch,
        there: Connection,
        target: PostgresReplicas,
        table: TargetTable,
        source: SourceTable,
        reason: str,
        noted_tick: int | None,
        log: Log,
    ) -> None:
        self._there, self._target, self._table = there, target, table
        kept = StagedCopy(there, table)
        super().__init__(batch, source, [kept], kept, reason, noted_tick, log)
        table.alter_copy(kept.rows_in)

    def publish(self, table: TargetTable) -> tuple[int, int | None, str]:
        """Gives the replica the rows that the table has at a new tick. Call it in a transaction.

        Returns:
            How many rows it has, how many were written (None for all), and the tick's snapshot.
        """
        kept, session = self._kept, self._claim.session
        kept.take_over()
        tick_id, snapshot = self._tick()
        create_stages(self._there)
        slices = of_table(self._plan(tick_id).slices, self._source.name)
        stage_events(session, self._there, slices, [self._source], self._claim.consumer)
        changed, added = table.follow(kept.rows_in, kept.begun["snapshot"])
        self._log(f"{self._source.name}: {changed} keys changed while it was copied")
        written = table.overwrite(kept.rows_in, snapshot, tick_id)
        kept.remove()
        return kept.rows + added, written, snapshot

    def _read_parts(self, parts: Sequence[int]) -> None:
        session = self._claim.session
        ranges = from_clauses(session, self._source, [self._parts[number] for number in parts])
        queries = self._table.row_queries(session, ranges)
        numbered = list(zip(parts, queries, strict=True))
        shares = [numbered[first::WORKERS] for first in range(min(WORKERS, len(numbered)))]
        with ExitStack() as stack, ThreadPoolExecutor(WORKERS) as pool:
            theres = [stack.enter_context(connected_target(session, self._target)) for _ in shares]
            for each in theres:
                stack.enter_context(each.transaction())
            list(pool.map(self._copy, theres, shares))
            self._confirm()
        self._kept.refresh()

    def _copy(self, there: Connection, share: Sequence[tuple[int, str]]) -> None:
        """Copies parts, and records them, in one transaction on each side."""
        kept = self._kept
        insert = sql.SQL("insert into {} values ({}, {}, {})")
        with reading(self._claim.session.url, seen_after(kept.begun["snapshot"])) as here:
            for part, query in share:
                found = pipe(here, query, there, kept.rows_in)
                there.execute(insert.format(kept.records, part, *found))
