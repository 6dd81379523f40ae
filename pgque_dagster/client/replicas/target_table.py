"""A table of PostgreSQL that is the replica of another one: how rows get into it.

Rows come as the JSON of events, and PostgreSQL reads the texts in it again. All changes are plain
DML, never TRUNCATE or a table in place of another one, so that readers with older snapshots see the
old rows, and rights, views and indexes on the replica stay.
"""

from collections.abc import Iterable

from psycopg import sql

from ..rights import Connection
from .deletes import FROM_TICK, HARD, HISTORY, MARKS, SOFT, TO_TICK, end_mark
from .target_definition import TargetDefinition, listed
from .verification import SHOWN, Difference

# Temporary tables: events of a batch; rows of a copy as JSON; typed rows of either.
CHANGES = sql.Identifier("pg_temp", "pgque_change")
COPIED = sql.Identifier("pg_temp", "pgque_copied")
_ROWS = sql.Identifier("pg_temp", "pgque_row")
_SOURCE_ROWS = sql.Identifier("pg_temp", "pgque_source_row")
_DELETED = sql.Identifier("__pgque_deleted")
_CHANGE_COLUMNS = (
    "(ev_id bigint, ev_txid xid8, ev_retry integer, ev_type text, ev_extra1 text, ev_data text)"
)


class TargetTable(TargetDefinition):
    """The replica of a table. Its other arguments and attributes are those of its definition.

    Attributes:
        added: by how many rows `apply` made it grow; None if nobody counts them.
    """

    added: int | None = None

    def later_kinds(self, copied: str) -> set[str]:
        """Returns the types of the staged events of the table that are not in a copy."""
        query = sql.SQL("select distinct e.ev_type from {} e where {}").format(
            CHANGES, self._later(copied)
        )
        return {kind for (kind,) in self._db.execute(query)}

    def apply(self, copied: str, tick_id: int) -> int:
        """Applies the staged events that are not in a copy. Returns how many keys changed.

        Args:
            copied: the snapshot of the copy.
            tick_id: the tick that ends the batch.
        """
        count = self._read_changes(copied)
        if not self._row_key:
            self.added = self._append()
            return self.added
        gone = sql.SQL("exists (select from {} s where s.{} and {})")
        ended = self._end(gone.format(_ROWS, _DELETED, self._matches("t", "s")), tick_id)
        _, inserted = self._store(tick_id)
        self.added = inserted - ended if self._deletes == HARD else None
        return count

    def overwrite(self, copied: str, tick_id: int | None) -> tuple[int, int]:
        """Makes the staged copy the content of the table, which is created if it is missing.

        Args:
            copied: the snapshot in which the rows were read.
            tick_id: the tick of the snapshot, if rows are kept.

        Returns:
            How many rows the copy has, and how many rows differed and were written.
        """
        count = self._read_copy(_ROWS)
        if self.mark is None:
            self._create()
        elif not self.fits:
            self._alter()
        if not self._row_key:
            self._db.execute(sql.SQL("delete from {}").format(self._table))
            self._set_mark(copied)
            return count, self._append()
        gone = sql.SQL("not exists (select from {} s where {})")
        written = self._end(gone.format(_ROWS, self._matches("t", "s")), tick_id)
        written += self._store(tick_id)[0]
        self._set_mark(copied)
        return count, written

    def compare(self, copied: str) -> tuple[int, int, tuple[Difference, ...]]:
        """Compares the staged copy with the table after the staged events.

        Returns:
            How many rows the copy has, how many keys differ, and some of them.
        """
        rows = self._read_copy(_SOURCE_ROWS)
        self._read_changes(copied)
        if not self._row_key:
            return rows, *self._compare_appended()
        keys = sql.SQL(", ").join(
            sql.SQL("coalesce({}, {})").format(sql.Identifier("o", name), sql.Identifier("s", name))
            for name in self._source.key
        )
        found = self._db.execute(
            sql.SQL(
                "with stored as (select {columns} from {table} t"
                "  where {live} and not exists (select from {changed} s where {changes})"
                "  union all select {columns} from {changed} where not {deleted})"
                " select count(*) over (), case when o.__pgque_here is null then 'extra'"
                "  when s.__pgque_here is null then 'missing' else 'different' end,"
                " row_to_json(o.__pgque_row)::text, row_to_json(s.__pgque_row)::text, {keys}"
                " from (select true as __pgque_here, {key}, __pgque_row"
                "  from (select {columns} from {rows}) __pgque_row) o"
                " full join (select true as __pgque_here, {key}, __pgque_row"
                "  from stored __pgque_row) s on {matches}"
                " where o.__pgque_here is null or s.__pgque_here is null"
                " or o.__pgque_row::text is distinct from s.__pgque_row::text limit {shown}"
            ).format(
                columns=self._columns,
                table=self._table,
                live=self._live(),
                changed=_ROWS,
                changes=self._matches("t", "s"),
                deleted=_DELETED,
                key=self._key,
                keys=keys,
                rows=_SOURCE_ROWS,
                matches=self._matches("o", "s"),
                shown=SHOWN,
            )
        ).fetchall()
        examples = tuple(
            Difference(
                kind,
                dict(zip(self._source.key, key, strict=True)),
                (here,) if here else (),
                (there,) if there else (),
            )
            for _, kind, here, there, *key in found
        )
        return rows, found[0][0] if found else 0, examples

    def _append(self) -> int:
        """Adds the rows. Returns how many."""
        action = sql.SQL("insert into {table} ({columns}) select {columns} from {rows}")
        found = action.format(table=self._table, columns=self._columns, rows=_ROWS)
        return self._db.execute(found).rowcount

    def _compare_appended(self) -> tuple[int, tuple[Difference, ...]]:
        """Counts equal rows of the staged copy, and of the table with the staged events."""
        found = self._db.execute(
            sql.SQL(
                "select count(*) over (), case when sum(n) > 0 then 'missing' else 'extra' end, row"
                " from (select row_to_json(__pgque_row.*)::text as row, 1 as n"
                "   from (select {columns} from {copied}) __pgque_row union all"
                "  select row_to_json(__pgque_row.*)::text, -1"
                "   from (select {columns} from {table} union all"
                "    select {columns} from {changed}) __pgque_row) r"
                " group by row having sum(n) <> 0 limit {shown}"
            ).format(
                columns=self._columns,
                copied=_SOURCE_ROWS,
                table=self._table,
                changed=_ROWS,
                shown=SHOWN,
            )
        ).fetchall()
        examples = tuple(
            Difference(kind, {}, *([(row,), ()] if kind == "missing" else [(), (row,)]))
            for _, kind, row in found
        )
        return found[0][0] if found else 0, examples

    def _later(self, copied: str) -> sql.Composed:
        return sql.SQL(
            "e.ev_extra1 = {} and not pg_visible_in_snapshot(e.ev_txid, {}::pg_snapshot)"
        ).format(self._source.name, copied)

    def _read_changes(self, copied: str) -> int:
        """Reads what the staged events come to: the last row of each key, or that it is gone."""
        query = sql.SQL("e.ev_type = 'delete' as {}, {} from {} e, {} where {}").format(
            _DELETED, self._typed(), CHANGES, self._parsed(), self._later(copied)
        )
        if self._row_key:
            query = sql.SQL("distinct on ({0}) {1} order by {0}, e.ev_id desc").format(
                self._key, query
            )
        return self._read(_ROWS, sql.SQL("select ") + query)

    def _read_copy(self, into: sql.Identifier) -> int:
        return self._read(
            into,
            sql.SQL("select false as {}, {} from {} e, {}").format(
                _DELETED, self._typed(), COPIED, self._parsed()
            ),
        )

    def _read(self, into: sql.Identifier, query: sql.Composed) -> int:
        self._db.execute(sql.SQL("drop table if exists {}").format(into))
        found = self._db.execute(
            sql.SQL("create temporary table {} on commit drop as {}").format(into, query)
        )
        self._db.execute(sql.SQL("analyze {}").format(into))
        return found.rowcount

    def _parsed(self) -> sql.Composed:
        columns = sql.SQL(", ").join(
            sql.SQL("{} text").format(sql.Identifier(name)) for name in self._types
        )
        return sql.SQL("json_to_record(e.ev_data::json) as pgque_text ({})").format(columns)

    def _typed(self) -> sql.Composed:
        return sql.SQL(", ").join(
            sql.SQL("{}::{} as {}").format(
                sql.Identifier("pgque_text", name), sql.SQL(kind), sql.Identifier(name)
            )
            for name, kind in self._types.items()
        )

    def _matches(self, one: str, other: str) -> sql.Composed:
        return sql.SQL(" and ").join(
            sql.SQL("{} = {}").format(sql.Identifier(one, name), sql.Identifier(other, name))
            for name in self._source.key
        )

    @staticmethod
    def _differs(one: str, other: str, names: Iterable[str]) -> sql.Composed:
        """Compares texts, because some types have no equality."""
        return sql.SQL("row({})::text is distinct from row({})::text").format(
            *(listed(names, alias) for alias in (one, other))
        )

    def _live(self) -> sql.Composable:
        """Returns the condition that the source has a row t."""
        mark = end_mark(self._deletes)
        return sql.SQL("t.{} is null").format(sql.Identifier(mark)) if mark else sql.SQL("true")

    def _end(self, gone: sql.Composable, tick_id: int | None) -> int:
        """Deletes the rows t of the source that are gone, or marks them. Returns how many."""
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
        # A database that went back in time has ticks anew: a version lasts a tick at least.
        return sql.SQL("greatest({}, t.{} + 1)").format(tick_id, sql.Identifier(FROM_TICK))

    def _store(self, tick_id: int | None) -> tuple[int, int]:
        """Stores the rows that differ from those of the table.

        Returns:
            How many, and how many of them have a new key.
        """
        if self._deletes == HISTORY:
            begun = self._store_versions(tick_id)
            return begun, begun
        is_soft = self._deletes == SOFT
        names = [*self._types, *MARKS[self._deletes]]
        mark = sql.SQL(", case when {} then {} end").format(_DELETED, tick_id)
        # A kept column that the source has no longer is null in a row that changes. Equal keys may
        # print differently, as 1.0 and 1.00 do.
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
                " insert into {} as t ({}) select {}{} from {} where {} on conflict ({}) {}"
                # Of an updated row, it is this transaction, which has locked the row before.
                " returning t.xmax = 0 as is_new)"
                " select count(*), count(*) filter (where is_new) from stored"
            ).format(
                self._table,
                listed(names),
                self._columns,
                mark if is_soft else sql.SQL(""),
                _ROWS,
                sql.SQL("true" if is_soft else "not {}").format(_DELETED),
                self._key,
                action,
            )
        ).fetchall()
        return stored, inserted

    def _store_versions(self, tick_id: int | None) -> int:
        """Ends versions that differ from the rows, and begins those that the table lacks.

        Returns how many it begins.
        """
        same_key = self._matches("t", "s")
        differs = sql.SQL("exists (select from {} s where {} and {})")
        self._end(
            differs.format(_ROWS, same_key, self._differs("t", "s", self._types)),
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
                rows=_ROWS,
                deleted=_DELETED,
                live=self._live(),
                same_key=same_key,
            )
        )
        return begun.rowcount


def create_stages(connection: Connection) -> None:
    """Creates the temporary tables for events and rows, which the transaction's end drops."""
    connection.execute(
        f"create temporary table pgque_change {_CHANGE_COLUMNS} on commit drop".encode()
    )
    connection.execute("create temporary table pgque_copied (ev_data text) on commit drop")
