"""The definition of a replica in PostgreSQL: its columns, its key, and its owner.

The comment of the table names the owner. So it moves with the table, and tables that are not
replicas are recognized.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import psycopg
from psycopg import sql

from ...errors import InvalidArgument
from ...rights import Connection
from ..deletes import (
    FROM_TICK,
    HARD,
    MARKS,
    Deletes,
    check_kept_by,
    kept_by,
    stored_key,
    unfit_type,
)
from ..shape import Altered
from ..source import SourceTable

_MARK = "pgque"
# All other types become text: types of another database, and types whose text depends on it.
_TYPES = """
select coalesce(case when t.typnamespace = 'pg_catalog'::regnamespace and t.typtype <> 'c'
                      and t.typname !~ '^_?(reg|money|aclitem|pg_node)' then c.type end, 'text')
from unnest(%s::text[]) with ordinality c (type, number)
left join pg_type t on t.oid = to_regtype(c.type)
order by c.number
"""
_FOUND = """
select coalesce(obj_description(c.oid, 'pg_class'), ''),
       array(select array[a.attname::text, format_type(a.atttypid, a.atttypmod)]
             from pg_attribute a
             where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped),
       array(select a.attname::text
             from pg_index i, unnest(i.indkey::smallint[]) with ordinality k (attnum, number)
             join pg_attribute a on a.attnum = k.attnum and a.attrelid = c.oid
             where i.indrelid = c.oid and i.indisprimary order by k.number),
       (select conname::text from pg_constraint p where p.conrelid = c.oid and p.contype = 'p')
from pg_class c where c.oid = to_regclass(%s)
"""


@dataclass(frozen=True)
class Mark:
    """The content of a replica's comment.

    Attributes:
        replica_of: the queue, the consumer and the table.
        copied: the snapshot of its last copy.
        shape: the table's shape at the copy, or when columns were altered after it.
        deletes: how it keeps rows, as returned by `kept_by`.
    """

    replica_of: str
    copied: str
    shape: str
    deletes: str = HARD


class TargetDefinition:
    """The definition of a table that is a replica, in a transaction of the target.

    Attributes:
        schema: the schema of the replica.
        replica_of: the owner and the table.
        location: the database, the schema and the table, for messages.
        mark: the mark of its last copy; None if the table does not exist.

    Raises:
        InvalidArgument: if the table is not this replica, or keeps rows in another way.
    """

    def __init__(
        self,
        connection: Connection,
        schema: str,
        source: SourceTable,
        owner: str,
        deletes: Deletes,
    ) -> None:
        self._db, self._source, self._deletes = connection, source, deletes
        self.schema = schema
        self._table = sql.Identifier(schema, source.path[-1])
        self.location = f"{connection.info.dbname}.{schema}.{source.path[-1]}"
        self.replica_of = f"{owner}/{source.name}"
        names = [column.name for column in source.columns]
        types = connection.execute(_TYPES, ([c.data_type for c in source.columns],)).fetchall()
        self._types = {name: kind for name, (kind,) in zip(names, types, strict=True)}
        self._columns = listed(names)
        self._key = listed(source.key)
        self._row_key = stored_key(deletes, source.key)
        self._primary = sql.SQL("primary key ({})").format(listed(self._row_key))
        found = connection.execute(_FOUND, (self._table.as_string(connection),)).fetchone()
        self.mark = self._read_mark(found[0]) if found else None
        self._has = dict(found[1]) if found else {}
        # Each column of the replica, with its type.
        self._wants = {**self._types, **dict.fromkeys(MARKS[deletes], "bigint")}
        self._constraint = sql.Identifier(found[3]) if found and found[3] else None
        self._has_key = found is not None and tuple(found[2]) == self._row_key

    @property
    def fits(self) -> bool:
        """Whether it has the columns and the key of the source."""
        return self.fits_after(Altered())

    def fits_after(self, altered: Altered) -> bool:
        """Returns whether it has them after `alter_columns`, and no kept values among them."""
        gone = {*(altered.dropped if self._deletes == HARD else ())}
        old, new = {*altered.renamed.values()}, altered.added.keys() | altered.renamed.keys()
        if not gone | old <= self._has.keys() or new & (self._has.keys() - gone - old):
            return False
        has = self._has_after(altered)
        return (
            self._has_key
            and has.items() >= self._wants.items()
            and (self._deletes != HARD or len(has) == len(self._wants))
        )

    def _has_after(self, altered: Altered) -> dict[str, str]:
        gone = altered.dropped if self._deletes == HARD else ()
        names = {was: name for name, was in altered.renamed.items()}
        has = {names.get(x, x): kind for x, kind in self._has.items() if x not in gone}
        return has | {name: self._wants[name] for name in (*altered.retyped, *altered.added)}

    @property
    def has_columns(self) -> bool:
        """Whether it has the source's columns by their numbers, according to its mark."""
        shape = self.mark.shape if self.mark else ""
        if not shape.startswith("{"):
            return False
        has, wants = (json.loads(each)["columns"] for each in (shape, self._source.shape))
        return bool(has == wants)

    def _read_mark(self, comment: str) -> Mark:
        try:
            mark = Mark(**json.loads(comment)[_MARK])
        except (ValueError, TypeError, KeyError):
            raise InvalidArgument(
                f"{self.location} is another table, or the source itself, and not the "
                f"replica of {self.replica_of}",
                "Name another schema or database for the replicas, or move that table away. The "
                "comment of a replica names its owner: do not change it.",
            ) from None
        if mark.replica_of != self.replica_of:
            raise InvalidArgument(
                f"{self.location} is the replica of {mark.replica_of}, and not of "
                f"{self.replica_of}",
                "Name another schema or database for the replicas, or drop that table.",
            )
        check_kept_by(self.location, mark.deletes, kept_by(self._deletes, self._source.key))
        return mark

    def _set_mark(self, copied: str) -> None:
        kept = kept_by(self._deletes, self._source.key)
        mark = Mark(self.replica_of, copied, self._source.shape, kept)
        comment = json.dumps({_MARK: asdict(mark)})
        self._db.execute(sql.SQL("comment on table {} is {}").format(self._table, comment))

    def create(self, table: sql.Identifier) -> None:
        """Creates a table with the columns of the source, and the schema if that is missing."""
        found = self._db.execute("select to_regnamespace(quote_ident(%s))", (self.schema,))
        if found.fetchone() == (None,):
            self._db.execute(sql.SQL("create schema {}").format(sql.Identifier(self.schema)))
        self._db.execute(sql.SQL("create table {} ({})").format(table, self._typed_columns()))

    def alter_copy(self, table: sql.Identifier) -> None:
        """Gives a table that `create` created the columns that the source has now."""
        found = self._db.execute(sql.SQL("select * from {} limit 0").format(table)).description
        has, change = {each.name for each in found or ()}, sql.SQL("alter table {} ").format(table)
        for name in has - self._types.keys():
            self._db.execute(change + sql.SQL("drop column {}").format(sql.Identifier(name)))
        for name in [name for name in self._types if name not in has]:
            column = sql.Identifier(name), sql.SQL(self._types[name])
            self._db.execute(change + sql.SQL("add column {} {}").format(*column))

    def _typed_columns(self) -> sql.Composed:
        return sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind))
            for name, kind in self._types.items()
        )

    def _adopt(self, table: sql.Identifier, tick_id: int | None) -> None:
        """Makes a table with the rows of a copy the replica.

        Args:
            table: it was created by `create`, and may have the replica's name already.
            tick_id: the tick from which its rows are valid, if versions are kept.
        """
        if table != self._table:
            name = sql.Identifier(self._source.path[-1])
            self._db.execute(sql.SQL("alter table {} rename to {}").format(table, name))
        steps: list[sql.Composable] = []
        for mark in MARKS[self._deletes]:
            # A default fills the column of all rows without writing them.
            first, column = tick_id if mark == FROM_TICK else None, sql.Identifier(mark)
            steps.append(sql.SQL("add column {} bigint default {}").format(column, first))
            steps.append(sql.SQL("alter column {} drop default").format(column))
        if self._row_key:
            steps.append(sql.SQL("add ") + self._primary)
        self._alter_by(steps)

    def _alter(self) -> None:
        """Gives the table the columns and the key of the source.

        Kept rows keep the columns that the source no longer has.
        """
        if self._deletes == HARD:
            self._db.execute(sql.SQL("delete from {}").format(self._table))
            odd = [name for name, kind in self._has.items() if self._wants.get(name) != kind]
            steps = [sql.SQL("drop column {}").format(sql.Identifier(name)) for name in odd]
            there = {name: kind for name, kind in self._has.items() if name not in odd}
        else:
            there = self._has
            odd = [name for name, kind in self._wants.items() if there.get(name, kind) != kind]
            steps = [self._retyped(name) for name in odd]
        steps += [
            sql.SQL("add column {} {}").format(sql.Identifier(name), sql.SQL(kind))
            for name, kind in self._wants.items()
            if name not in there
        ]
        if self._constraint:
            steps.insert(0, sql.SQL("drop constraint {}").format(self._constraint))
        if self._row_key:
            steps.append(sql.SQL("add ") + self._primary)
        self._alter_by(steps)

    def alter_columns(self, altered: Altered, copied: str) -> None:
        """Alters the columns as the source did, if `fits_after` allows it."""
        gone = altered.dropped if self._deletes == HARD else ()
        steps = [sql.SQL("drop column {}").format(sql.Identifier(name)) for name in gone]
        # Columns may have swapped names.
        between = {name: f"__pgque_{number}" for number, name in enumerate(altered.renamed)}
        for names in ({between[x]: was for x, was in altered.renamed.items()}, between):
            steps += [
                sql.SQL("rename column {} to {}").format(*map(sql.Identifier, (was, name)))
                for name, was in names.items()
            ]
        steps += [
            sql.SQL("alter column {} type {}").format(sql.Identifier(x), sql.SQL(self._wants[x]))
            for x in altered.retyped
        ]
        for name, first in altered.added.items():
            column, kind = sql.Identifier(name), sql.SQL(self._wants[name])
            # A default fills the column of all rows without writing them.
            add = sql.SQL("add column {} {} default {}::text::{}")
            steps.append(add.format(column, kind, first, kind))
            steps.append(sql.SQL("alter column {} drop default").format(column))
        self._alter_by(steps)
        self._has = self._has_after(altered)
        self._set_mark(copied)

    def _alter_by(self, steps: Iterable[sql.Composable]) -> None:
        for step in steps:
            self._db.execute(sql.SQL("alter table {} ").format(self._table) + step)

    def _retyped(self, name: str) -> sql.Composed:
        """Returns the step that changes the type of a column, if it can hold the kept values."""
        column, types = sql.Identifier(name), (self._wants[name], self._has[name])
        now, was = map(sql.SQL, types)
        if len({"with time zone" in each for each in types}) > 1:
            # The time zone in which the source converted its rows is unknown.
            is_lost = sql.SQL("{column} is not null").format(column=column)
        else:
            is_lost = sql.SQL(
                "{column}::text is distinct from {column}::text::{now}::text::{was}::text"
            ).format(column=column, now=now, was=was)
        lossy = sql.SQL("select from {} where {} limit 1").format(self._table, is_lost)
        try:
            with self._db.transaction():
                is_unfit = self._db.execute(lossy).rowcount > 0
        except psycopg.DataError:
            is_unfit = True
        if is_unfit:
            raise unfit_type(name, *types)
        return sql.SQL("alter column {0} type {1} using {0}::text::{1}").format(column, now)


def listed(names: Iterable[str], alias: str | None = None) -> sql.Composed:
    """Returns a list of columns, with the alias of the table if one is given."""
    return sql.SQL(", ").join(sql.Identifier(*([alias] if alias else []), name) for name in names)
