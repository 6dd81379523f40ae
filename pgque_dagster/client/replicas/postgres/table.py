"""Writes rows into a replica in PostgreSQL.

Changes arrive as the JSON of events, and PostgreSQL parses the texts in it. Copied rows arrive in
COPY's text format, with the session settings of events. All changes of a replica are DML, never
TRUNCATE or a swap of tables, so that readers with older snapshots see the old rows, and rights,
views and indexes on the replica stay.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

from ...errors import TargetRefused, is_refusal
from ...plans import is_after
from ...rights import Connection
from ...session import Session
from ..capture import COPY
from ..deletes import FROM_TICK, HARD, HISTORY, MARKS, SOFT, TO_TICK, end_mark
from ..events import TRUNCATE
from ..snapshot import value_queries
from .definition import TargetDefinition, listed

# Temporary tables: events of a batch; their result; rows of a copy; all keys of the source.
CHANGES = sql.Identifier("pg_temp", "pgque_change")
ROWS = sql.Identifier("pg_temp", "pgque_row")
COPIED = sql.Identifier("pg_temp", "pgque_copied")
KEYS = sql.Identifier("pg_temp", "pgque_key")
DELETED = sql.Identifier("__pgque_deleted")
_CHANGE_COLUMNS = (
    "(ev_id bigint, ev_txid xid8, ev_retry integer, ev_type text, ev_extra1 text, ev_data text)"
)


class TargetTable(TargetDefinition):
    """The replica of a table. Its other arguments and attributes are those of its definition.

    Attributes:
        added: by how many rows `apply` made it grow; None if that is not counted.
    """

    added: int | None = None

    def later_kinds(self, copied: str) -> set[str]:
        """Returns the types of the staged events of the table that are not in a copy.

        Those before the last TRUNCATE are deleted, unless a copy was requested.
        """
        query = sql.SQL("select distinct e.ev_type from {} e where {}").format(
            CHANGES, self._later(copied)
        )
        kinds = {kind for (kind,) in self._db.execute(query)}
        if TRUNCATE not in kinds or COPY in kinds:
            return kinds
        cut = sql.SQL(
            "delete from {0} e where {1} and ev_id <"
            " (select max(e.ev_id) from {0} e where {1} and e.ev_type = {2})"
        ).format(CHANGES, self._later(copied), TRUNCATE)
        self._db.execute(cut)
        return {kind for (kind,) in self._db.execute(query)}

    def replace(self, copied: str, tick_id: int) -> int:
        """Gives the replica the rows of the staged events, which begin with a TRUNCATE.

        Returns how many. The arguments are those of `apply`.
        """
        count = self._read_changes(copied)
        gone = sql.SQL("delete from {} where {}").format(ROWS, DELETED)
        count -= self._db.execute(gone).rowcount
        self._db.execute(sql.SQL("alter table {} drop column {}").format(ROWS, DELETED))
        self.overwrite(ROWS, copied, tick_id)
        return count

    def apply(self, copied: str, tick_id: int) -> int:
        """Applies the staged events that are not in a copy. Returns how many keys changed."""
        count = self._read_changes(copied)
        if not self._row_key:
            self.added = self._append(ROWS)
            return self.added
        self._apply_rows(tick_id)
        return count

    def correct(self, copied: str, now: str, tick_id: int) -> int:
        """Applies the staged events and copied rows, and deletes all rows without a staged key.

        `copied` is the snapshot of the last copy, and `now` that of the keys and rows, at the tick.

        Returns:
            How many keys changed.
        """
        self._read_changes(copied)
        names = {
            "rows": ROWS,
            "keys": KEYS,
            "new": COPIED,
            "gone": DELETED,
            "table": self._table,
        }
        for step in (
            "delete from {rows} s using {new} t where {same}",
            "update {rows} s set {gone} = true"
            " where not exists (select from {keys} t where {same})",
            "insert into {rows} ({gone}, {columns}) select true, {columns} from {table} t"
            " where {live} and not exists (select from {keys} s where {same})"
            " and not exists (select from {rows} s where {same})",
            "insert into {rows} ({gone}, {columns}) select false, {columns} from {new}",
            "analyze {rows}",
        ):
            found = sql.SQL(step).format(
                **names, same=self._matches("t", "s"), live=self._live(), columns=self._columns
            )
            self._db.execute(found)
        self._apply_rows(tick_id)
        self._set_mark(now)
        ((count,),) = self._db.execute(sql.SQL("select count(*) from {}").format(ROWS)).fetchall()
        return int(count)

    def _apply_rows(self, tick_id: int) -> None:
        """Applies the changes that were read."""
        gone = sql.SQL("exists (select from {} s where s.{} and {})")
        ended = self._end(gone.format(ROWS, DELETED, self._matches("t", "s")), tick_id)
        _, inserted = self._store(ROWS, tick_id)
        self.added = inserted - ended if self._deletes == HARD else None

    @property
    def source(self) -> str:
        """The name of the source."""
        return self._source.name

    def row_queries(self, session: Session, parts: Iterable[str]) -> list[str]:
        """Returns queries for the rows of the source, as text that the replica's types can read.

        Args:
            session: a session of the source's database.
            parts: the FROM clause of each query: the table or a part of it.
        """
        plain = {name: "{}" for name, kind in self._types.items() if kind != "text"}
        return value_queries(session, self._source, plain, parts)

    def stage(self) -> sql.Identifier:
        """Creates a table for the rows of a copy. It is the replica itself, if there is none."""
        if self.mark is not None:
            return self.stage_copy()
        self.create(self._table)
        return self._table

    def stage_keys(self, session: Session) -> str:
        """Creates a temporary table for all keys of the source. Returns the query for them."""
        self._db.execute(sql.SQL("drop table if exists {}").format(KEYS))
        key = listed(self._source.key)
        create = sql.SQL("create temporary table {} on commit drop as select {} from {} limit 0")
        self._db.execute(create.format(KEYS, key, self._table))
        (query,) = self.row_queries(session, [self.source])
        return f"select {key.as_string(None)} from ({query}) pgque_key"

    def stage_copy(self) -> sql.Identifier:
        """Creates a temporary table for the rows of a copy."""
        self._db.execute(sql.SQL("drop table if exists {}").format(COPIED))
        create = sql.SQL("create temporary table {} ({}) on commit drop")
        self._db.execute(create.format(COPIED, self._typed_columns()))
        return COPIED

    def overwrite(self, rows: sql.Identifier, copied: str, tick_id: int | None) -> int | None:
        """Gives the replica the rows of a copy. If there is none, their table becomes it.

        Args:
            rows: the table with the rows.
            copied: the snapshot in which the source has these rows.
            tick_id: the tick of the snapshot, if rows are kept.

        Returns:
            How many rows differed and were written; None for all.
        """
        written = None
        if self.mark is None:
            self._adopt(rows, tick_id)
        elif not self.fits:
            self._alter()
        if not self._row_key and self.mark is not None:
            self._db.execute(sql.SQL("delete from {}").format(self._table))
            self._append(rows)
        elif self.mark is not None:
            gone = sql.SQL("not exists (select from {} s where {})")
            written = self._end(gone.format(rows, self._matches("t", "s")), tick_id)
            there = sql.SQL("(select *, false as {} from {})").format(DELETED, rows)
            written += self._store(there, tick_id)[0]
        self._set_mark(copied)
        return written

    def follow(self, rows: sql.Identifier, begun: str) -> tuple[int, int]:
        """Applies the staged events to the rows of a copy in parts.

        Args:
            rows: the table with the rows.
            begun: the snapshot of the tick at which the copy began.

        Returns:
            How many keys changed, and by how many rows the copy grew.
        """
        count = self._read_changes(begun)
        ended = self._db.execute(
            sql.SQL("delete from {} t using {} s where {}").format(
                rows, ROWS, self._matches("t", "s")
            )
        ).rowcount
        insert = sql.SQL(
            "insert into {table} ({columns}) select {columns} from {rows} where not {gone}"
        )
        inserted = self._db.execute(
            insert.format(table=rows, columns=self._columns, rows=ROWS, gone=DELETED)
        ).rowcount
        self._db.execute(sql.SQL("analyze {}").format(rows))
        return count, inserted - ended

    def _append(self, rows: sql.Identifier) -> int:
        """Adds rows. Returns how many."""
        action = sql.SQL("insert into {table} ({columns}) select {columns} from {rows}")
        found = action.format(table=self._table, columns=self._columns, rows=rows)
        return self._db.execute(found).rowcount

    def _later(self, copied: str) -> sql.Composed:
        is_later = is_after(copied, "e.ev_txid")
        return sql.SQL("e.ev_extra1 = {} and {}").format(self._source.name, is_later)

    def _read_changes(self, copied: str) -> int:
        """Reads the result of the staged events: the last row of each key, or its deletion."""
        query = sql.SQL(
            "e.ev_type = 'delete' as {}, {} from {} e, {}"
            " where {} and e.ev_type in ('insert', 'update', 'delete')"
        ).format(DELETED, self._typed(), CHANGES, self._parsed(), self._later(copied))
        if self._row_key:
            query = sql.SQL("distinct on ({0}) {1} order by {0}, e.ev_id desc").format(
                self._key, query
            )
        self._db.execute(sql.SQL("drop table if exists {}").format(ROWS))
        found = self._db.execute(
            sql.SQL("create temporary table {} on commit drop as select {}").format(ROWS, query)
        )
        self._db.execute(sql.SQL("analyze {}").format(ROWS))
        return found.rowcount

    def _parsed(self) -> sql.Composed:
        columns = sql.SQL(", ").join(
            sql.SQL("{} text").format(sql.Identifier(name)) for name in self._types
        )
        return sql.SQL("json_to_record(e.ev_data::json) as pgque_text ({})").format(columns)

    def _typed(self) -> sql.Composed:
        return sql.SQL(", ").join(
            sql.SQL("(pgque_text.{0})::{1} as {0}").format(sql.Identifier(name), sql.SQL(kind))
            for name, kind in self._types.items()
        )

    def _matches(self, one: str, other: str) -> sql.Composed:
        return sql.SQL(" and ").join(
            sql.SQL("{} = {}").format(sql.Identifier(one, name), sql.Identifier(other, name))
            for name in self._source.key
        )

    @staticmethod
    def _differs(one: str, other: str, names: Iterable[str]) -> sql.Composed:
        """Compares text, because some types have no equality operator."""
        return sql.SQL("row({})::text is distinct from row({})::text").format(
            *(listed(names, alias) for alias in (one, other))
        )

    def _live(self) -> sql.Composable:
        """Returns the condition that the source has the row t."""
        mark = end_mark(self._deletes)
        return sql.SQL("t.{} is null").format(sql.Identifier(mark)) if mark else sql.SQL("true")

    def _end(self, gone: sql.Composable, tick_id: int | None) -> int:
        """Deletes or marks the rows t that the source no longer has. Returns how many."""
        mark = end_mark(self._deletes)
        action = sql.SQL("delete from {} t").format(self._table)
        if mark is not None:
            action = sql.SQL("update {} t set {} = {}").format(
                self._table, sql.Identifier(mark), self._end_tick(tick_id)
            )
        ended = self._db.execute(sql.SQL("{} where {} and {}").format(action, self._live(), gone))
        return ended.rowcount

    def _end_tick(self, tick_id: int | None) -> sql.Composable:
        if self._deletes != HISTORY:
            return sql.Literal(tick_id)
        # A database that went back in time repeats tick ids: a version lasts at least one tick.
        return sql.SQL("greatest({}, t.{} + 1)").format(tick_id, sql.Identifier(FROM_TICK))

    def _store(self, rows: sql.Composable, tick_id: int | None) -> tuple[int, int]:
        """Stores the rows that differ from those of the table.

        Returns:
            How many rows it stored, and how many of them have a new key.
        """
        if self._deletes == HISTORY:
            begun = self._store_versions(rows, tick_id)
            return begun, begun
        is_soft = self._deletes == SOFT
        names = [*self._types, *MARKS[self._deletes]]
        mark = sql.SQL(", case when {} then {} end").format(DELETED, tick_id)
        # A kept column that the source no longer has becomes null in a row that changes. Equal keys
        # may print differently, such as 1.0 and 1.00.
        there = {**self._wants, **(self._has if is_soft else {})}
        action = sql.SQL("do update set {} where {}").format(
            sql.SQL(", ").join(
                sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in there
            ),
            self._differs("t", "excluded", names),
        )
        ((stored, inserted),) = self._db.execute(
            sql.SQL(
                "with stored as ("
                " insert into {} as t ({}) select {}{} from {} s where {} on conflict ({}) {}"
                # For an updated row, xmax is this transaction, which has locked the row before.
                " returning t.xmax = 0 as is_new)"
                " select count(*), count(*) filter (where is_new) from stored"
            ).format(
                self._table,
                listed(names),
                self._columns,
                mark if is_soft else sql.SQL(""),
                rows,
                sql.SQL("true" if is_soft else "not {}").format(DELETED),
                self._key,
                action,
            )
        ).fetchall()
        return stored, inserted

    def _store_versions(self, rows: sql.Composable, tick_id: int | None) -> int:
        """Ends versions that differ from the rows, and starts versions that the table lacks.

        Returns how many it starts.
        """
        same_key = self._matches("t", "s")
        differs = sql.SQL("exists (select from {} s where {} and {})")
        self._end(
            differs.format(rows, same_key, self._differs("t", "s", self._types)),
            tick_id,
        )
        begun = self._db.execute(
            sql.SQL(
                "insert into {table} ({columns}, {from_tick}) select {columns}, greatest({tick},"
                " (select max(greatest(t.{from_tick} + 1, t.{to_tick})) from {table} t"
                "  where {same_key}))"
                " from {rows} s where not {deleted}"
                " and not exists (select from {table} t where {live} and {same_key})"
            ).format(
                table=self._table,
                columns=self._columns,
                from_tick=sql.Identifier(FROM_TICK),
                to_tick=sql.Identifier(TO_TICK),
                tick=tick_id,
                rows=rows,
                deleted=DELETED,
                live=self._live(),
                same_key=same_key,
            )
        )
        return begun.rowcount


def create_stages(connection: Connection) -> None:
    """Creates the temporary table for events, which is dropped when the transaction ends."""
    connection.execute(
        f"create temporary table pgque_change {_CHANGE_COLUMNS} on commit drop".encode()
    )


@contextmanager
def refusing(table: TargetTable) -> Iterator[None]:
    """Adds to an error which table refused its rows."""
    try:
        yield
    except psycopg.Error as error:
        if not is_refusal(error):
            raise
        raise TargetRefused(
            f"{table.location} was refused its rows: {error.diag.message_primary or error}",
            error.diag.message_hint or "Correct the cause, and run the batch again.",
        ) from error
