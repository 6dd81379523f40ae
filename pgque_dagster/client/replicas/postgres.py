"""Replicas of tables in PostgreSQL: a batch reaches all of them in one transaction of the target.

The transaction also records the batch (`last_batch.py`) and, with a copy, its snapshot and
the table's shape. So an attempt that finds the batch recorded changes nothing, and only has what it
finds remembered by the ack. The lock on the record keeps a stale attempt from publishing: the lease
is checked under the lock, and a later attempt waits for it, or ends the session that holds it.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal

import psycopg

from ..batch import Batch, read_plan
from ..connection import connect
from ..errors import InvalidArgument, PermissionDenied, TargetRefused, is_refusal, translated
from ..last_batch import Applied, LastBatch, Span
from ..read_batch import ReadBatch
from ..rights import Connection
from ..session import Session
from ..source_tables import SourceTable
from ..table_spec import TableSpec
from .apart import Apart, BatchTables
from .deletes import HARD, MARKS, Deletes, check_append, check_deletes
from .known_tables import check_known
from .snapshot import Snapshot, print_settings
from .staging import stage_events, stage_rows, staged_kinds
from .standing import (
    Copied,
    Log,
    Replicated,
    Standing,
    acked,
    remember,
    remember_stored,
    stored_ticks,
)
from .target_table import TargetTable, create_stages

# Of a table.
_MAX_COLUMNS = 1600
# Settings that change how the target reads texts.
_READING = ("set array_nulls = on", "set xmloption = content")


@dataclass(frozen=True)
class PostgresReplicas:
    """Where the replicas of tables are in PostgreSQL.

    Attributes:
        url: the database; None for that of the tables.
        schema: the schema of all replicas; None for that of each table. It is created if it is
            missing.
        deletes: what becomes of rows that the table has no longer: `hard` deletes them, `soft`
            keeps them with a mark, and `history` keeps each version of each row.
    """

    url: str | None = None
    schema: str | None = None
    deletes: Deletes = HARD

    def __post_init__(self) -> None:
        """Refuses a place in which each table would be its own replica."""
        check_deletes(self.deletes)
        if self.url is None and self.schema is None:
            raise InvalidArgument(
                "each table would be its own replica",
                "Name the schema of the replicas, or the url of another database.",
            )

    def check(self, source: SourceTable) -> None:
        """Refuses a table that can have no replica here, by `InvalidArgument`."""
        check_append(source.name, source.key, self.deletes)
        if source.spec.unstorable:
            raise InvalidArgument(
                f"unstorable of {source.name} is for the lake, and PostgreSQL holds each value",
                "Leave unstorable out.",
            )
        # A batch is staged in a table that says of each row whether it was deleted.
        most = _MAX_COLUMNS - max(1, len(MARKS[self.deletes]))
        if len(source.columns) > most:
            raise InvalidArgument(
                f"table {source.name} has {len(source.columns)} columns, and a replica in "
                f"PostgreSQL with deletes: {self.deletes} has at most {most}",
                "Leave columns out: exclude.",
            )

    def check_places(self, sources: Sequence[SourceTable]) -> None:
        """Refuses tables of which two would have one replica, by `InvalidArgument`."""
        places = [(self.schema or each.path[0], each.path[-1]) for each in sources]
        for source, place in zip(sources, places, strict=True):
            if places.count(place) > 1:
                raise InvalidArgument(
                    f"{source.name} and another table would have one replica: {'.'.join(place)}",
                    "Replicate them by two replicas with two schemas.",
                )


def replicate(
    claim: ReadBatch,
    specs: Sequence[str | TableSpec],
    target: PostgresReplicas,
    log: Log = print,
) -> list[Replicated | Apart]:
    """Applies a batch to the replicas of tables, in one transaction.

    A table that fails is rolled back to its savepoint. The transaction records which tables lack
    the batch, and from which tick on.

    Args:
        claim: a batch of the queue into which the tables are captured.
        specs: the names of the tables, or what of them is replicated.
        target: where the replicas are.
        log: is told about copies, and about tables that stand apart.

    Returns:
        What happened to each table, and then those that stand apart.

    Raises:
        InvalidArgument: if two replicas would be one table, or there are changes of another table.
        TargetOutOfStep: if the replicas are those of another incarnation of the database.
        LeaseLost: if another owner took the batch over.
        Exception: what is wrong with the first table, if something is with all, and no value is
            the cause.
    """
    batch = acked(claim)
    tables = BatchTables(batch, specs, log)
    span = Span.of(batch.session, batch.queue, batch.lease)
    stored = stored_ticks(batch.session, batch.queue, batch.consumer)
    with connected_target(batch.session, target) as there:
        ledger = LastBatch(there, batch.queue, batch.consumer)
        with there.transaction():
            last = ledger.take(batch.renew)
            # No later attempt has published, and none will as long as the lock is held.
            batch.renew()
            if last.incarnation not in (None, span.incarnation):
                raise ledger.of_another_life(span, last)
            # Batches without events move the consumer and not the target.
            follows = last.tick_id is not None and (
                last.precedes(span) or stored == (last.tick_id, span.prev_tick_id)
            )
            done = _Apply(batch, there, tables, target, log, last, last.is_(span), follows).run()
            apart = tables.settle()
            lacking = {each.name: (each.tick_id, each.reason) for each in apart}
            ledger.record(span, json.dumps(lacking) if lacking else None)
            batch.run_checks()
            batch.renew()
    remember_stored(batch)
    return [*done, *apart]


@dataclass
class _Work:
    """A table, its replica, and why it is copied, if it is."""

    standing: Standing
    table: TargetTable
    reason: str | None = None


class _Apply:
    """Applies a batch in a transaction of the target.

    Args:
        batch: the batch.
        there: the target.
        tables: the tables of the batch.
        target: where the replicas are.
        log: is told about copies.
        last: what the target has.
        has_batch: whether that is the batch.
        follows: whether it is all before the batch.
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
        # The tables that lack what the target has, each with the tick that it ends at.
        self._lacking: dict[str, tuple[int, str]] = json.loads(last.failed or "{}")
        self._works: dict[str, _Work] = {}
        if self._has_batch:
            tables.stored = tables.specs.keys() - self._lacking.keys()

    def run(self) -> list[Replicated]:
        """Applies the batch to each table, or copies it. Returns what happened to them."""
        batch, session, tables = self._batch, self._batch.session, self._tables
        for name in tables.tried:
            with self._alone(name):
                self._works[name] = self._work(tables.standing(name))
        sources = [each.standing.source for each in self._works.values()]
        self._target.check_places(sources)
        create_stages(self._there)
        slices = read_plan(batch, 1).slices
        stage_events(session, self._there, slices, sources, batch.consumer)
        for name, work in self._works.items():
            tick_id, source = tables.noted_tick(name), work.standing.source
            if tick_id is not None and work.standing.why_unknown is None:
                with self._alone(name):
                    missed = tables.missed(source, tick_id)
                    stage_events(session, self._there, missed, [source], batch.consumer)
        kinds = staged_kinds(self._there)
        check_known(batch, tables.specs.keys(), set(kinds))
        for name, work in self._works.items():
            if not tables.has_failed(name):
                with self._alone(name):
                    self._find_reason(name, work, kinds.get(name, set()))
        done = []
        with ExitStack() as stack:
            copy = None
            if any(work.reason for work in self._works.values()):
                deletes = self._target.deletes
                copy = stack.enter_context(Snapshot.of_copy(session.url, batch.queue, deletes))
            for name, work in self._works.items():
                if not tables.has_failed(name):
                    with self._alone(name):
                        done.append(self._apply(work, kinds.get(name, set()), copy))
        return done

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """Undoes the block if it fails, which then is the table's own trouble."""
        with self._tables.alone(name), self._there.transaction():
            yield

    def _work(self, standing: Standing) -> _Work:
        owner = f"{self._batch.queue}/{self._batch.consumer}"
        return _Work(standing, replica_of(self._there, self._target, standing.source, owner))

    def _find_reason(self, name: str, work: _Work, kinds: set[str]) -> None:
        """Finds out whether a table is copied, and mends its triggers before."""
        lacks_from, why = self._lacking.get(name, (None, ""))
        if self._has_batch:
            if lacks_from is not None:
                raise TargetRefused(why)
            if work.table.mark is not None:
                return
        follows = self._follows and self._tables.noted_tick(name) == lacks_from
        work.reason = _copy_reason(work.standing, work.table, kinds, follows)
        if work.reason is not None:
            mended = self._work(work.standing.mended(self._batch.session))
            work.standing, work.table = mended.standing, mended.table

    def _apply(
        self, work: _Work, kinds: set[str], copy: tuple[int | None, Snapshot] | None
    ) -> Replicated:
        standing, table, batch = work.standing, work.table, self._batch
        source, last, rows, written = standing.source, standing.copied, 0, None
        resumed: Literal["changed", "copied"] | None = None
        if work.reason is not None and copy is not None:
            tick_id, snapshot = copy
            self._log(f"copying {source.name}: {work.reason}")
            stage_rows(batch.session, snapshot, source, self._there)
            with _refusing(table):
                rows, written = table.overwrite(snapshot.transactions, tick_id)
            standing.check_unchanged(batch.session)
            last = Copied(snapshot.transactions, source.shape)
        elif self._has_batch and table.mark is not None:
            last = Copied(table.mark.copied, table.mark.shape)
            if last != standing.copied:
                resumed = "copied"
            elif kinds:
                resumed = "changed"
        elif kinds and last is not None:
            with _refusing(table):
                rows = table.apply(last.transactions, batch.lease.tick_id)
        if last is not None and last != standing.copied:
            remember(batch, source.name, last)
        return Replicated(
            *(source, table.location, None, rows, work.reason, written, table.added, resumed)
        )


def _copy_reason(
    standing: Standing, table: TargetTable, kinds: set[str], follows: bool
) -> str | None:
    """Returns why a table must be copied; None if changes can be applied."""
    copied = standing.copied
    reason = standing.copy_reason(
        table.mark.copied if table.mark else None,
        kinds,
        lambda: table.later_kinds(copied.transactions) if copied else set(),
    )
    if reason is not None or copied is None:
        return reason
    if not follows:
        return "the replica does not end where the batch begins"
    return None if table.fits else "somebody altered the replica"


@contextmanager
def connected_target(session: Session, target: PostgresReplicas) -> Iterator[Connection]:
    """Opens a connection to the database of the replicas."""
    with translated(), connect(target.url or session.url) as connection:
        # As those of the connections from which rows are copied: rows are compared as text.
        for setting in (*print_settings(session), *_READING):
            # By its own search_path, the target finds the ledger, and prints no type there.
            if not setting.startswith("set search_path"):
                connection.execute(setting.encode())
        try:
            yield connection
        except psycopg.errors.InsufficientPrivilege as error:
            raise PermissionDenied(
                f"the replicas' database {connection.info.dbname} refuses role "
                f'"{connection.info.user}": {error.diag.message_primary or error}',
                "The role needs TEMPORARY on the database, and CREATE and USAGE on the schema of "
                "the replicas, which it owns.",
            ) from error


def replica_of(
    there: Connection, target: PostgresReplicas, source: SourceTable, owner: str
) -> TargetTable:
    """Returns the replica of a table.

    Args:
        there: the target, in a transaction.
        target: where the replicas are.
        source: the table.
        owner: the queue and the consumer.

    Raises:
        InvalidArgument: if the replica is another table, or the table can have none.
    """
    target.check(source)
    return TargetTable(there, target.schema or source.path[0], source, owner, target.deletes)


@contextmanager
def _refusing(table: TargetTable) -> Iterator[None]:
    """Says which table refused its rows."""
    try:
        yield
    except psycopg.Error as error:
        if not is_refusal(error):
            raise
        raise TargetRefused(
            f"{table.location} was refused its rows: {error.diag.message_primary or error}",
            error.diag.message_hint or "Correct the cause, and run the batch again.",
        ) from error
