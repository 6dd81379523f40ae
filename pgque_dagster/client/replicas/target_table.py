"""A table of PostgreSQL that is the replica of another one: how rows get into it.

Rows come as the JSON of events, and PostgreSQL reads the texts in it again. All changes are plain
DML, never TRUNCATE or a table in place of another one, so that readers with older snapshots see the
old rows, and rights, views and indexes on the replica stay.

The comment of the table says whose replica it is. So it goes where the table goes, and a table of
somebody else is recognized.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

from psycopg import sql

from ..errors import InvalidArgument
from ..rights import Connection
from ..source_tables import SourceTable
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
_MARK = "pgque"
# The others are text: those of another database, and those whose text means something there only.
_TYPES = """
select coalesce(case when t.typnamespace = 'pg_catalog'::regnamespace
                      and t.typname !~ '^_?(reg|money|aclitem)' then c.type end, 'text')
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
    """

    replica_of: str
    copied: str
    shape: str


class TargetTable:
    """The replica of a table.

    Args:
        connection: of the target, in a transaction.
        schema: its schema.
        source: the table.
        owner: the queue and the consumer.

    Attributes:
        location: the database, the schema and the table, for people.
        mark: of its last copy; None if the table does not exist.
        fits: whether it has the columns and the key of the source.

    Raises:
        InvalidArgument: if the table is not this replica.
    """

    def __init__(
        self, connection: Connection, schema: str, source: SourceTable, owner: str
    ) -> None:
        self._db, self._source = connection, source
        self._schema = schema
        self._table = sql.Identifier(schema, source.path[-1])
        self.location = f"{connection.info.dbname}.{schema}.{source.path[-1]}"
        self._replica_of = f"{owner}/{source.name}"
        names = [column.name for column in source.columns]
        types = connection.execute(_TYPES, ([c.data_type for c in source.columns],)).fetchall()
        self._types = {name: kind for name, (kind,) in zip(names, types, strict=True)}
        self._columns = _list(names)
        self._key = _list(source.key)
        found = connection.execute(_FOUND, (self._table.as_string(connection),)).fetchone()
        self.mark = self._read_mark(found[0]) if found else None
        has = {(name, kind) for name, kind in found[1]} if found else set()
        wants = set(self._types.items())
        self._odd = [sql.Identifier(name) for name, _ in has - wants]
        self._missing = [name for name in names if (name, self._types[name]) in wants - has]
        self._constraint = sql.Identifier(found[3]) if found and found[3] else None
        self.fits = found is not None and has == wants and tuple(found[2]) == source.key

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
        return mark

    def later_kinds(self, copied: str) -> set[str]:
        """Returns the types of the staged events of the table that are not in a copy."""
        query = sql.SQL("select distinct e.ev_type from {} e where {}").format(
            CHANGES, self._later(copied)
        )
        return {kind for (kind,) in self._db.execute(query)}

    def has_misfits(self, copied: str) -> bool:
        """Whether staged events that are not in a copy have other columns than the table."""
        query = sql.SQL(
            "select exists (select from {} e where {} and case"
            " when e.ev_type in ('insert', 'update', 'delete') then {}::text[] is distinct from"
            ' array(select k from json_object_keys(e.ev_data::json) k order by k collate "C")'
            " else true end)"
        ).format(CHANGES, self._later(copied), sorted(self._types))
        ((found,),) = self._db.execute(query).fetchall()
        return bool(found)

    def apply(self, copied: str) -> int:
        """Applies the staged events that are not in a copy. Returns how many keys changed."""
        count = self._read_changes(copied)
        self._db.execute(
            sql.SQL("delete from {} t using {} s where s.{} and {}").format(
                self._table, _ROWS, _DELETED, self._matches("t", "s")
            )
        )
        self._store()
        return count

    def overwrite(self, copied: str) -> int:
        """Makes the staged copy the content of the table, which is created if it is missing.

        Only rows that differ are written. Returns how many rows the table has.

        Args:
            copied: the snapshot in which the rows were read.
        """
        count = self._read_copy(_ROWS)
        if self.mark is None:
            self._create()
        elif not self.fits:
            self._alter()
        else:
            self._db.execute(
                sql.SQL("delete from {} t where not exists (select from {} s where {})").format(
                    self._table, _ROWS, self._matches("t", "s")
                )
            )
        self._store()
        mark = json.dumps({_MARK: asdict(Mark(self._replica_of, copied, self._source.shape))})
        self._db.execute(sql.SQL("comment on table {} is {}").format(self._table, mark))
        return count

    def compare(self, copied: str) -> tuple[int, int, tuple[Difference, ...]]:
        """Compares the staged copy with the table after the staged events.

        Returns:
            How many rows the copy has, how many keys differ, and some of them.
        """
        rows = self._read_copy(_SOURCE_ROWS)
        self._read_changes(copied)
        keys = sql.SQL(", ").join(
            sql.SQL("coalesce({}, {})").format(sql.Identifier("o", name), sql.Identifier("s", name))
            for name in self._source.key
        )
        found = self._db.execute(
            sql.SQL(
                "with stored as (select {columns} from {table} t"
                "  where not exists (select from {changed} s where {changes})"
                "  union all select {columns} from {changed} where not {deleted})"
                " select count(*) over (), case when o.__pgque_here is null then 'extra'"
                "  when s.__pgque_here is null then 'missing' else 'different' end, {keys}"
                " from (select true as __pgque_here, r.* from {rows} r) o"
                " full join (select true as __pgque_here, r.* from stored r) s on {matches}"
                " where o.__pgque_here is null or s.__pgque_here is null or {differs} limit {shown}"
            ).format(
                columns=self._columns,
                table=self._table,
                changed=_ROWS,
                changes=self._matches("t", "s"),
                deleted=_DELETED,
                keys=keys,
                rows=_SOURCE_ROWS,
                matches=self._matches("o", "s"),
                differs=self._differs("o", "s"),
                shown=SHOWN,
            )
        ).fetchall()
        examples = tuple(
            Difference(kind, dict(zip(self._source.key, key, strict=True)))
            for _, kind, *key in found
        )
        return rows, found[0][0] if found else 0, examples

    def _later(self, copied: str) -> sql.Composed:
        return sql.SQL(
            "e.ev_extra1 = {} and not pg_visible_in_snapshot(e.ev_txid, {}::pg_snapshot)"
        ).format(self._source.name, copied)

    def _read_changes(self, copied: str) -> int:
        """Reads what the staged events come to: the last row of each key, or that it is gone."""
        return self._read(
            _ROWS,
            sql.SQL(
                "select distinct on ({}) e.ev_type = 'delete' as {}, {} from {} e, {} where {}"
                " order by {}, e.ev_id desc"
            ).format(
                self._key,
                _DELETED,
                self._typed(),
                CHANGES,
                self._parsed(),
                self._later(copied),
                self._key,
            ),
        )

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

    def _differs(self, one: str, other: str) -> sql.Composed:
        """Compares texts, because some types have no equality."""
        return sql.SQL("row({})::text is distinct from row({})::text").format(
            *(_list(self._types, alias) for alias in (one, other))
        )

    def _store(self) -> None:
        values = [name for name in self._types if name not in self._source.key]
        action: sql.Composable = sql.SQL("do nothing")
        if values:
            action = sql.SQL("do update set {} where {}").format(
                sql.SQL(", ").join(
                    sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in values
                ),
                self._differs("t", "excluded"),
            )
        self._db.execute(
            sql.SQL(
                "insert into {} as t ({columns}) select {columns} from {} where not {}"
                " on conflict ({}) {}"
            ).format(self._table, _ROWS, _DELETED, self._key, action, columns=self._columns)
        )

    def _create(self) -> None:
        found = self._db.execute("select to_regnamespace(quote_ident(%s))", (self._schema,))
        if found.fetchone() == (None,):
            self._db.execute(sql.SQL("create schema {}").format(sql.Identifier(self._schema)))
        columns = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind))
            for name, kind in self._types.items()
        )
        self._db.execute(
            sql.SQL("create table {} ({}, primary key ({}))").format(
                self._table, columns, self._key
            )
        )

    def _alter(self) -> None:
        """Gives the table the columns and the key of the source, without its rows."""
        self._db.execute(sql.SQL("delete from {}").format(self._table))
        steps = [
            *([sql.SQL("drop constraint {}").format(self._constraint)] if self._constraint else []),
            *(sql.SQL("drop column {}").format(name) for name in self._odd),
            *(
                sql.SQL("add column {} {}").format(sql.Identifier(name), sql.SQL(self._types[name]))
                for name in self._missing
            ),
            sql.SQL("add primary key ({})").format(self._key),
        ]
        for step in steps:
            self._db.execute(sql.SQL("alter table {} ").format(self._table) + step)


def create_stages(connection: Connection) -> None:
    """Creates the temporary tables for events and rows, which the transaction's end drops."""
    connection.execute(
        f"create temporary table pgque_change {_CHANGE_COLUMNS} on commit drop".encode()
    )
    connection.execute("create temporary table pgque_copied (ev_data text) on commit drop")


def _list(names: Any, alias: str | None = None) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(*([alias] if alias else []), name) for name in names)
