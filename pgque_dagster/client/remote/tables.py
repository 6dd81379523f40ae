"""Applies changes to tables in bulk: COPY into a temporary table, then a statement for all rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psycopg import sql

from ..encoding import encode
from ..errors import InvalidArgument, MalformedPayload
from ..rights import Connection
from .changes import Change

_COLUMNS = """
select n.nspname::text, c.relname::text, a.attname::text, a.attgenerated <> '',
       coalesce(a.attnum = any ((i.indkey::int2[])[0:i.indnkeyatts - 1]), false),
       a.atttypid in ('json'::regtype, 'jsonb'::regtype), a.attidentity = 'a'
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
left join pg_index i on i.indrelid = c.oid and i.indisprimary
where c.oid = to_regclass(%s)
order by a.attnum
"""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """A table of the target.

    Attributes:
        name: schema and name, quoted.
        columns: those that can be written.
        generated: those that PostgreSQL computes, whose values in events are left out.
        key: the columns of the primary key.
        json: the columns of type json and jsonb.
        fixed: those that only an insert may write: generated always as identity.
    """

    name: sql.Identifier
    columns: frozenset[str]
    generated: frozenset[str]
    key: tuple[str, ...]
    json: frozenset[str]
    fixed: frozenset[str]


@dataclass
class _Merged:
    """What the changes of a batch come to for one table.

    Attributes:
        is_truncated: whether the table is emptied first.
        rows: by key: the row to store, or None; and whether to delete the stored one first, so
            that columns that the row lacks get their defaults.
    """

    is_truncated: bool = False
    rows: dict[tuple[Any, ...], tuple[Row | None, bool]] = field(default_factory=dict)

    def add(self, change: Change, key: tuple[Any, ...], row: Row) -> None:
        """Adds a change, which comes after those before."""
        if change.operation == "truncate":
            self.is_truncated = True
            self.rows = {}
            return
        before, is_deleted = self.rows.get(key, (None, False))
        if change.operation == "delete":
            self.rows[key] = (None, True)
        else:
            self.rows[key] = ({**(before or {}), **row}, is_deleted)


class KeyWrittenInTwoWays(Exception):
    """A row was deleted under one text of its key and stored under another one.

    For example, jsontriga writes a timestamptz with the offset of the session that made the change.
    Only the target knows that the keys are equal, so the changes were not merged.
    """


class TableWriter:
    """Writes changes to tables of the target, in the transaction of its connection.

    Args:
        connection: of the target.
        tables: the target's table by that of the changes, or None for one whose changes are left
            out; None if the names are the same.
    """

    def __init__(self, connection: Connection, tables: Mapping[str, str | None] | None) -> None:
        self._connection = connection
        self._tables = tables
        self._found: dict[str, Table | None] = {}
        self._stages: dict[tuple[str, ...], sql.Identifier] = {}

    def write(self, changes: Iterable[tuple[int, Change]]) -> None:
        """Merges changes by key, and applies what they come to.

        Args:
            changes: each with the id of its event, in order.

        Raises:
            InvalidArgument: if a table, a column or a primary key is missing, or if a truncate
                would delete rows of other tables.
            MalformedPayload: if a change lacks the key of its row.
            KeyWrittenInTwoWays: if changes have to be applied one by one, in a new transaction.
        """
        merged: dict[str, _Merged] = {}
        for ev_id, change in changes:
            table = self._table_of(ev_id, change)
            if table is not None:
                if change.operation == "truncate":
                    self._check_only_source(ev_id, change.table)
                key, row = _fitted(ev_id, change, table)
                merged.setdefault(change.table, _Merged()).add(change, key, row)
        tables = [(self._found[name], each) for name, each in merged.items()]
        emptied = [table.name for table, each in tables if table and each.is_truncated]
        if emptied:
            self._execute(sql.SQL("truncate {}").format(sql.SQL(", ").join(emptied)))
        # Deletes first, in case a stored row has a unique value of a new one; children, whose
        # changes usually come later, before their parents.
        for table, each in reversed(tables):
            keys = [key for key, (_, is_deleted) in each.rows.items() if is_deleted]
            if table and keys and not each.is_truncated:
                self._delete(table, keys)
        for table, each in tables:
            by_columns: dict[tuple[str, ...], list[Row]] = {}
            for stored, _ in each.rows.values():
                if stored is not None:
                    by_columns.setdefault(tuple(sorted(stored)), []).append(stored)
            for columns, rows in by_columns.items():
                assert table is not None
                self._store(table, columns, rows)
            deleted = [key for key, (stored, _) in each.rows.items() if stored is None]
            if table and by_columns and deleted:
                self._check_deleted(table, deleted)

    def find(self, name: str, why: str) -> Table:
        """Returns a table of the target.

        Args:
            name: the name, as `to_regclass` reads it.
            why: what it is needed for, for errors.

        Raises:
            InvalidArgument: if it does not exist or has no primary key.
        """
        rows = self._connection.execute(_COLUMNS, (name,)).fetchall()
        database = self._connection.info.dbname
        if not rows:
            raise InvalidArgument(
                f"database {database} has no table {name}, {why}",
                "Create it, or say in tables= which table it is, or None to leave it out.",
            )
        key = tuple(column for _, _, column, _, is_key, *_ in rows if is_key)
        if not key:
            raise InvalidArgument(
                f"table {name} of database {database} has no primary key, {why}",
                "Add one: rows of events are found by it.",
            )
        return Table(
            sql.Identifier(rows[0][0], rows[0][1]),
            frozenset(row[2] for row in rows if not row[3]),
            frozenset(row[2] for row in rows if row[3]),
            key,
            frozenset(row[2] for row in rows if row[5]),
            frozenset(row[2] for row in rows if row[6]),
        )

    def _table_of(self, ev_id: int, change: Change) -> Table | None:
        if change.table in self._found:
            return self._found[change.table]
        why = f"of which event {ev_id} is; nothing of its batch was applied or acked"
        found: Table | None = None
        if self._tables is None:
            found = self.find(
                sql.Identifier(*change.table.split(".", 1)).as_string(self._connection), why
            )
        elif change.table not in self._tables:
            raise InvalidArgument(
                f"tables= does not name table {change.table}, {why}",
                "Add it, with None to leave its changes out.",
            )
        elif (name := self._tables[change.table]) is not None:
            found = self.find(name, why)
        self._found[change.table] = found
        return found

    def _check_only_source(self, ev_id: int, name: str) -> None:
        names = self._tables or {}
        others = sorted(
            other for other in names if other != name and names[other] == names.get(name)
        )
        if others:
            raise InvalidArgument(
                f"event {ev_id} empties table {name}, and {names[name]} of the target also has the "
                f"rows of {', '.join(others)}; nothing of its batch was applied or acked",
                "Delete the rows of this table in the target, and leave the event out: change= of "
                "the loader.",
            )

    def _delete(self, table: Table, keys: Sequence[tuple[Any, ...]]) -> None:
        stage = self._stage(table, table.key, keys)
        self._execute(
            sql.SQL("delete from {} t using {} s where {}").format(
                table.name, stage, _matches(table)
            )
        )
        self._execute(sql.SQL("truncate {}").format(stage))

    def _check_deleted(self, table: Table, keys: Sequence[tuple[Any, ...]]) -> None:
        """Checks that the target has none of the rows that were deleted."""
        stage = self._stage(table, table.key, keys)
        found = self._connection.execute(
            sql.SQL("select from {} t join {} s on {} limit 1").format(
                table.name, stage, _matches(table)
            )
        )
        if found.rowcount:
            raise KeyWrittenInTwoWays
        self._execute(sql.SQL("truncate {}").format(stage))

    def _store(self, table: Table, columns: Sequence[str], rows: Sequence[Row]) -> None:
        stage = self._stage(table, columns, [[row[column] for column in columns] for row in rows])
        others = [column for column in columns if column not in {*table.key, *table.fixed}]
        change = sql.SQL("do update set {}").format(
            sql.SQL(", ").join(
                sql.SQL("{0} = excluded.{0}").format(sql.Identifier(column)) for column in others
            )
        )
        self._execute(
            sql.SQL(
                "insert into {} ({columns}) overriding system value select {columns} from {}"
                " on conflict ({}) {}"
            ).format(
                table.name,
                stage,
                _names(table.key),
                change if others else sql.SQL("do nothing"),
                columns=_names(columns),
            )
        )
        self._execute(sql.SQL("truncate {}").format(stage))

    def _stage(
        self, table: Table, columns: Sequence[str], rows: Iterable[Sequence[Any]]
    ) -> sql.Identifier:
        """Copies rows into a temporary table, whose columns have the types of the table's.

        The temporary table is used again for the next rows, because the locks on each that is
        created are kept until the end of the transaction, and the server has room for some
        thousands.
        """
        stage = self._stages.setdefault(
            (table.name.as_string(), *columns),
            sql.Identifier("pg_temp", f"pgque_loader_stage_{len(self._stages)}"),
        )
        # It is missing again if its savepoint was rolled back.
        self._execute(
            sql.SQL(
                "create temporary table if not exists {} on commit drop"
                " as select {} from {} with no data"
            ).format(stage, _names(columns), table.name)
        )
        statement = sql.SQL("copy {} ({}) from stdin").format(stage, _names(columns))
        with self._connection.cursor().copy(statement) as copy:
            for row in rows:
                copy.write_row(
                    [
                        _written(value, column in table.json)
                        for column, value in zip(columns, row, strict=True)
                    ]
                )
        return stage

    def _execute(self, statement: sql.Composed) -> None:
        self._connection.execute(statement)


def _fitted(ev_id: int, change: Change, table: Table) -> tuple[tuple[Any, ...], Row]:
    """Returns the key and the row of a change, without generated columns."""
    if change.operation == "truncate":
        return (), {}
    told = f"event {ev_id} is a change of table {change.table}"
    key = change.key
    if key is not None and set(key) != set(table.key):
        raise InvalidArgument(
            f"{told} with the key {', '.join(key) or '()'}, and the primary key of the target is "
            f"{', '.join(table.key)}; nothing of its batch was applied or acked",
            f"Create the trigger with pkey={','.join(table.key)}, or give the target that key.",
        )
    row = {name: value for name, value in change.row.items() if name not in table.generated}
    unknown = sorted(set(row) - table.columns)
    if unknown and change.operation != "delete":
        raise InvalidArgument(
            f"{told} with the column {', '.join(unknown)}, which the target lacks; nothing of its "
            "batch was applied or acked",
            "Add the column to the target, or leave it out: ignore= of the trigger, or change= of "
            "the loader.",
        )
    values = tuple(row.get(name) for name in table.key)
    if None in values:
        raise MalformedPayload(
            f"{told} without a value of its key {', '.join(table.key)}",
            "Each event needs the key of its row.",
        )
    return values, row


def _written(value: Any, is_json: bool) -> Any:
    """Returns a value as psycopg copies it: dicts, and lists for a column of JSON, as JSON."""
    if isinstance(value, Mapping) or (is_json and isinstance(value, list | tuple)):
        return encode(value)
    return value


def _matches(table: Table) -> sql.Composed:
    return sql.SQL(" and ").join(
        sql.SQL("t.{0} = s.{0}").format(sql.Identifier(column)) for column in table.key
    )


def _names(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(column) for column in columns)
