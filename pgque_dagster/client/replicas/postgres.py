"""Replicas of tables in PostgreSQL: a batch reaches all of them in one transaction of the target.

The transaction also records the batch (`last_batch.py`) and, with a copy, its snapshot and
the table's shape. So an attempt that finds the batch recorded changes nothing, and only has what it
finds remembered by the ack. The lock on the record keeps a stale attempt from publishing: the lease
is checked under the lock, and a later attempt waits for it, or ends the session that holds it.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import psycopg
from psycopg import sql

from ..batch import Batch, read_plan
from ..connection import connect
from ..errors import InvalidArgument, PermissionDenied, TargetRefused, is_refusal, translated
from ..last_batch import LastBatch, Span
from ..models import Slice
from ..read_batch import ReadBatch
from ..rights import Connection
from ..session import Session
from ..source_tables import SourceTable
from ..table_spec import TableSpec
from .deletes import HARD, MARKS, Deletes, check_append, check_deletes
from .snapshot import Snapshot, kept_columns, print_settings, row_queries
from .standing import (
    REDELIVERED,
    Copied,
    Log,
    Replicated,
    Standing,
    acked,
    check_known,
    find_standings,
    remember,
    remember_stored,
    stored_ticks,
)
from .target_table import CHANGES, COPIED, TargetTable, create_stages

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
        # A batch is staged in a table that says of each row whether it was deleted.
        most = _MAX_COLUMNS - max(1, len(MARKS[self.deletes]))
        if len(source.columns) > most:
            raise InvalidArgument(
                f"table {source.name} has {len(source.columns)} columns, and a replica in "
                f"PostgreSQL with deletes: {self.deletes} has at most {most}",
                "Leave columns out: exclude.",
            )


def replicate(
    claim: ReadBatch,
    tables: Sequence[str | TableSpec],
    target: PostgresReplicas,
    log: Log = print,
) -> list[Replicated]:
    """Applies a batch to the replicas of tables, in one transaction.

    Args:
        claim: a batch of the queue into which the tables are captured.
        tables: the names of the tables, or what of them is replicated.
        target: where the replicas are.
        log: is told about copies.

    Returns:
        What happened to each table.

    Raises:
        InvalidArgument: if a table cannot be replicated, its replica would be somebody else's
            table, or there are changes of another table.
        TargetOutOfStep: if the replicas are those of another incarnation of the database.
        TargetRefused: if the target refuses the rows.
        LeaseLost: if another owner took the batch over.
    """
    batch = acked(claim)
    session = batch.session
    standings = find_standings(session, batch.queue, batch.consumer, tables)
    span = Span.of(session, batch.queue, batch.lease)
    stored = stored_ticks(session, batch.queue, batch.consumer)
    with connected_target(session, target) as there:
        ledger = LastBatch(there, batch.queue, batch.consumer)
        with there.transaction():
            last = ledger.take(batch.renew)
            # No later attempt has published, and none will as long as the lock is held.
            batch.renew()
            if last.incarnation not in (None, span.incarnation):
                raise ledger.of_another_life(span, last)
            copied, done = _apply(
                batch,
                there,
                standings,
                target,
                log,
                has_batch=last.is_(span),
                # Batches without events move the consumer and not the target.
                follows=last.tick_id is not None
                and (last.precedes(span) or stored == (last.tick_id, span.prev_tick_id)),
            )
            ledger.record(span, None)
            for standing in copied:
                standing.check_unchanged(session)
            batch.run_checks()
            batch.renew()
    remember_stored(batch)
    return done


def _apply(
    batch: Batch,
    there: Connection,
    standings: Sequence[Standing],
    target: PostgresReplicas,
    log: Log,
    *,
    has_batch: bool,
    follows: bool,
) -> tuple[list[Standing], list[Replicated]]:
    """Applies a batch in a transaction of the target. Returns the tables that were copied, and all.

    Args:
        batch: the batch.
        there: the target.
        standings: the tables.
        target: where the replicas are.
        log: is told about copies.
        has_batch: whether the target has the batch.
        follows: whether the target has all batches before it.
    """
    session, owner = batch.session, f"{batch.queue}/{batch.consumer}"
    tables = replicas_of(there, target, [each.source for each in standings], owner)
    create_stages(there)
    stage_events(session, there, read_plan(batch, 1).slices, [each.source for each in standings])
    kinds = staged_kinds(there)
    check_known(batch, standings, set(kinds))
    reasons = [
        None
        if has_batch and table.mark is not None
        else _copy_reason(standing, table, kinds.get(standing.source.name, set()), follows)
        for standing, table in zip(standings, tables, strict=True)
    ]
    copied, done = [], []
    with ExitStack() as stack:
        if any(reasons):
            standings = [
                each.mended(session) if reason else each
                for each, reason in zip(standings, reasons, strict=True)
            ]
            tables = replicas_of(there, target, [each.source for each in standings], owner)
            tick_id, snapshot = stack.enter_context(
                Snapshot.of_copy(session.url, batch.queue, target.deletes)
            )
        for standing, table, reason in zip(standings, tables, reasons, strict=True):
            source, last, rows, written = standing.source, standing.copied, 0, None
            if reason is not None:
                log(f"copying {source.name}: {reason}")
                stage_rows(session, snapshot, source, there)
                with _refusing(table):
                    rows, written = table.overwrite(snapshot.transactions, tick_id)
                last = Copied(snapshot.transactions, source.shape)
                copied.append(standing)
            elif has_batch and table.mark is not None:
                last = Copied(table.mark.copied, table.mark.shape)
            elif source.name in kinds and last is not None:
                with _refusing(table):
                    rows = table.apply(last.transactions, batch.lease.tick_id)
            if last is not None and last != standing.copied:
                remember(batch, source.name, last)
            done.append(Replicated(source, table.location, None, rows, reason, written))
    return copied, done


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


def replicas_of(
    there: Connection, target: PostgresReplicas, sources: Sequence[SourceTable], owner: str
) -> list[TargetTable]:
    """Returns the replicas of tables.

    Args:
        there: the target, in a transaction.
        target: where the replicas are.
        sources: the tables.
        owner: the queue and the consumer.

    Raises:
        InvalidArgument: if two tables would have one replica, a replica is another table, or a
            table can have none.
    """
    for source in sources:
        target.check(source)
    places = [(target.schema or each.path[0], each.path[-1]) for each in sources]
    for source, place in zip(sources, places, strict=True):
        if places.count(place) > 1:
            raise InvalidArgument(
                f"{source.name} and another table would have one replica: {'.'.join(place)}",
                "Replicate them by two replicas with two schemas.",
            )
    return [
        TargetTable(there, schema, source, owner, target.deletes)
        for source, (schema, _) in zip(sources, places, strict=True)
    ]


def stage_events(
    session: Session,
    there: Connection,
    slices: Sequence[Slice],
    sources: Sequence[SourceTable],
) -> None:
    """Copies events of tables into the temporary table for them, with what replicas may have."""
    with connect(session.url) as here:
        cases = [
            sql.SQL("when ev_extra1 = {} then {}").format(each.name, kept_columns(each))
            for each in sources
        ]
        data = sql.SQL(
            "case when ev_type not in ('insert', 'update', 'delete') then '{{}}' {} end"
        ).format(sql.SQL(" ").join(cases))
        for part in slices:
            _pipe(
                here,
                "select ev_id, ev_txid, ev_retry, ev_type, ev_extra1, "
                f"{data.as_string(here)} from ({part.sql}) pgque_slice",
                there,
                CHANGES,
            )


def staged_kinds(there: Connection) -> dict[str, set[str]]:
    """Returns the types of the staged events by the table that they are of."""
    kinds: dict[str, set[str]] = {}
    kind = sql.SQL("case when ev_retry is null then ev_type else {} end").format(REDELIVERED)
    query = sql.SQL("select distinct ev_extra1, {} from {}").format(kind, CHANGES)
    for table, found in there.execute(query):
        kinds.setdefault(table, set()).add(found)
    return kinds


def stage_rows(
    session: Session, snapshot: Snapshot, source: SourceTable, there: Connection
) -> None:
    """Copies the rows of a table in a snapshot into the temporary table for them."""
    there.execute(sql.SQL("truncate {}").format(COPIED))
    (rows,) = row_queries(session, source, [""])
    query = f"select {kept_columns(source).as_string(None)} from ({rows}) pgque_rows"
    with snapshot.connected(session.url) as here:
        _pipe(here, query, there, COPIED)


def _pipe(here: Connection, query: str, there: Connection, into: sql.Identifier) -> None:
    into_table = sql.SQL("copy {} from stdin").format(into)
    with (
        here.cursor().copy(f"copy ({query}) to stdout".encode()) as rows,
        there.cursor().copy(into_table) as stored,
    ):
        for block in rows:
            stored.write(block)


@contextmanager
def _refusing(table: TargetTable) -> Iterator[None]:
    """Says which table refused its rows."""
    try:
        yield
    except psycopg.Error as error:
        if not is_refusal(error):
            raise
        raise TargetRefused(
            f"{table.location} was refused its rows: {error.diag.message_primary or error}; "
            "nothing of the batch was applied or acked",
            error.diag.message_hint or "Correct the cause, and run the batch again.",
        ) from error
