"""A table of PostgreSQL that is the replica of another one: its columns, its key, and whose it is.

The comment of the table says whose replica it is. So it goes where the table goes, and a table of
somebody else is recognized.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from psycopg import sql

from ..errors import InvalidArgument
from ..rights import Connection
from ..source_tables import SourceTable
from .deletes import HARD, MARKS, Deletes, check_kept_by, kept_by, stored_key, unfit_type

_MARK = "pgque"
# The others are text: those of another database, and those whose text means something there only.
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
    """What the comment of a replica says.

    Attributes:
        replica_of: the queue, the consumer and the table.
        copied: the snapshot of its last copy.
        shape: the table's shape at the copy.
        deletes: what it keeps, as `kept_by` has it.
    """

    replica_of: str
    copied: str
    shape: str
    deletes: str = HARD


class TargetDefinition:
    """The definition of a table that is a replica.

    Args:
        connection: of the target, in a transaction.
        schema: its schema.
        source: the table.
        owner: the queue and the consumer.
        deletes: what becomes of rows that the source has no longer.

    Attributes:
        location: the database, the schema and the table, for people.
        mark: of its last copy; None if the table does not exist.
        fits: whether it has the columns and the key of the source.

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
        self._schema = schema
        self._table = sql.Identifier(schema, source.path[-1])
        self.location = f"{connection.info.dbname}.{schema}.{source.path[-1]}"
        self._replica_of = f"{owner}/{source.name}"
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
        self.fits = (
            found is not None
            and tuple(found[2]) == self._row_key
            and self._has.items() >= self._wants.items()
            and (deletes != HARD or len(self._has) == len(self._wants))
        )

    def _read_mark(self, comment: str) -> Mark:
        try:
            mark = Mark(**json.loads(comment)[_MARK])
        except (ValueError, TypeError, KeyError):
            raise InvalidArgument(
                f"{self.location} is a table of somebody else, or the source itself, and no "
                f"replica of {self._replica_of}",
                "Name another schema or database for the replicas, or move that table away. The "
                "comment of a replica says whose it is: do not change it.",
            ) from None
        if mark.replica_of != self._replica_of:
            raise InvalidArgument(
                f"{self.location} is the replica of {mark.replica_of}, and not of "
                f"{self._replica_of}",
                "Name another schema or database for the replicas, or drop that table.",
            )
        check_kept_by(self.location, mark.deletes, kept_by(self._deletes, self._source.key))
        return mark

    def _set_mark(self, copied: str) -> None:
        kept = kept_by(self._deletes, self._source.key)
        mark = Mark(self._replica_of, copied, self._source.shape, kept)
        comment = json.dumps({_MARK: asdict(mark)})
        self._db.execute(sql.SQL("comment on table {} is {}").format(self._table, comment))

    def _create(self) -> None:
        found = self._db.execute("select to_regnamespace(quote_ident(%s))", (self._schema,))
        if found.fetchone() == (None,):
            self._db.execute(sql.SQL("create schema {}").format(sql.Identifier(self._schema)))
        columns = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind))
            for name, kind in self._wants.items()
        )
        self._db.execute(
            sql.SQL("create table {} ({}{})").format(
                self._table,
                columns,
                sql.SQL(", ") + self._primary if self._row_key else sql.SQL(""),
            )
        )

    def _alter(self) -> None:
        """Gives the table the columns and the key of the source.

        Rows are kept with columns that the source has no longer, or not at all.
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
        for step in steps:
            self._db.execute(sql.SQL("alter table {} ").format(self._table) + step)

    def _retyped(self, name: str) -> sql.Composed:
        """Returns the step that gives a column its type, if that can hold the kept values."""
        column, types = sql.Identifier(name), (self._wants[name], self._has[name])
        now, was = map(sql.SQL, types)
        if len({"with time zone" in each for each in types}) > 1:
            # Nobody knows the time zone by which the source converted its rows.
            is_lost = sql.SQL("{column} is not null").format(column=column)
        else:
            is_lost = sql.SQL(
                "{column}::text is distinct from {column}::text::{now}::text::{was}::text"
            ).format(column=column, now=now, was=was)
        lossy = sql.SQL("select from {} where {} limit 1").format(self._table, is_lost)
        if self._db.execute(lossy).rowcount:
            raise unfit_type(name, *types)
        return sql.SQL("alter column {0} type {1} using {0}::text::{1}").format(column, now)


def listed(names: Iterable[str], alias: str | None = None) -> sql.Composed:
    """Returns a list of columns, of the table with an alias if one is given."""
    return sql.SQL(", ").join(sql.Identifier(*([alias] if alias else []), name) for name in names)
