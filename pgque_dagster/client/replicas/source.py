"""Tables whose changes are captured into a queue: the sources of replicas."""

import json
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime

from ..errors import InvalidArgument, PermissionDenied
from ..operation import Call
from ..session import Session
from .spec import APPEND, TableSpec

_MATCHING = """
select pgque.capture_table(c.oid)
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = %s and c.relname like %s and c.relkind in ('r', 'p') and not c.relispartition
order by 1
"""


# For a table that was never analyzed, reltuples is -1.
_ESTIMATES = r"""
select t.name, e.rows, e.bytes, (
    select substring(obj_description(g.oid, 'pg_trigger')
                     from '^captured since (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)$')::timestamptz
    from pg_trigger g
    where g.tgrelid = to_regclass(t.name)
      and g.tgname = 'pgque_capture_' || left(md5(%s), 12) || '_after_insert')
from unnest(%s::text[]) t (name)
cross join lateral (
    select case when min(c.reltuples) >= 0 then sum(c.reltuples)::bigint end as rows,
           sum(pg_total_relation_size(c.oid))::bigint as bytes
    from pgque.capture_relations(to_regclass(t.name)) r
    join pg_class c on c.oid = r and c.relkind = 'r') e
where e.bytes is not null
"""


# By the names of the columns in an event: the table's current columns, each with the place of its
# name among them, or None, and the JSON of its value if there is no place, or None for null.
Readings = Mapping[tuple[str, ...], tuple[tuple[str, int | None, str | None], ...]]


@dataclass(frozen=True)
class Estimate:
    """What PostgreSQL knows about a table without reading it.

    Attributes:
        rows: about how many rows it has; None if unknown.
        size: in bytes, with its indexes.
        captured_since: None if it is not captured, or was captured by a role that does not own it.
    """

    rows: int | None
    size: int
    captured_since: datetime | None


@dataclass(frozen=True)
class SourceColumn:
    """A column of a table as it appears in events.

    Attributes:
        data_type: its type as PostgreSQL prints it; for a domain, the underlying type.
    """

    name: str
    data_type: str
    comment: str | None


@dataclass(frozen=True)
class SourceTable:
    """The definition of a table of PostgreSQL at the time it was read.

    Attributes:
        name: schema and name, as in events.
        path: the same without quotes.
        columns: its columns.
        key: the columns of its key; empty if rows are only appended.
        shape: shows changes to the spec, and those to the table that its triggers do not report.
        spec: what is replicated. Its columns are those of the replica: masked ones are text.
        missing: the values that PostgreSQL reads in columns that a row lacks, as the JSON of
            events, by the column's number. They may differ between partitions.
        unused: the partitions to which nothing was ever written.
        old_shape: what earlier versions stored instead of the shape, if that is needed.
        readings: how to read events that have other columns, or other names of columns.
    """

    name: str
    path: tuple[str, ...]
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...]
    shape: str
    spec: TableSpec
    missing: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unused: Set[str] = frozenset()
    old_shape: str = ""
    readings: Readings = field(default_factory=dict)

    @staticmethod
    def find(session: Session, table: str | TableSpec, queue: str | None = None) -> "SourceTable":
        """Reads the definition of a table.

        Args:
            session: a session of its database.
            table: its name, with or without a schema, or its spec.
            queue: the queue whose triggers count for its shape; None for no queue.

        Raises:
            InvalidArgument: if the table does not exist, has no key, or has a key that cannot find
                rows in another system; or if its spec does not fit.
            PermissionDenied: if the role may not read it.
        """
        spec = TableSpec.of(table)
        name = spec.source
        full, path, facts, why, grant = session.run(
            Call(
                "select t.name, parse_ident(t.name),"
                " pgque.table_facts(to_regclass(t.name), t.queue), ("
                " select case when c.relkind not in ('r', 'p') then 'is a view or the like'"
                " when c.relpersistence = 'u' then 'is unlogged'"
                " when exists (select from pgque.capture_relations(c.oid) r join pg_class p"
                " on p.oid = r and p.relpersistence = 'u') then 'has an unlogged partition'"
                " when c.relpersistence = 't' then 'is temporary'"
                " when c.relkind = 'r' and exists (select from pg_inherits where inhparent = c.oid)"
                " then 'has tables that inherit it' else pgque.capture_gap(c.oid, t.queue) end"
                " from pg_class c where c.oid = to_regclass(t.name)),"
                " case when not has_table_privilege(to_regclass(t.name), 'select')"
                " then format('grant select on %%s to %%I;', t.name, current_user)"
                " when row_security_active(to_regclass(t.name)) then format("
                "'alter role %%I bypassrls; by a superuser, or, if the role owns the table, "
                "alter table %%s no force row level security;', current_user, t.name) end "
                "from (select pgque.capture_table(to_regclass(%s)) as name, %s as queue) t",
                (name, queue),
                lambda rows: rows[0],
            )
        )
        if why is not None:
            raise InvalidArgument(
                f"a replica of table {full} could differ from it unseen, because it {why}",
                "Leave it out, or copy its rows into a table of its own.",
            )
        if facts is None:
            raise InvalidArgument(
                f"database {session.database} has no table {name}",
                "Create it, or correct its name; a name without a schema is looked up by the "
                "search_path.",
            )
        if grant is not None:
            raise PermissionDenied(
                f"this role may not read all rows of table {full}", f"It needs: {grant}"
            )
        columns = session.run(
            Call(
                "select column_name, data_type, is_key, is_stable, description "
                "from pgque.source_columns(%s)",
                (full,),
                list,
            )
        )
        key = tuple(column for column, _, is_key, *_ in columns if is_key)
        for column, kind, is_key, is_stable, _ in columns:
            if is_key and not is_stable:
                raise InvalidArgument(
                    f"column {column} of {full} is part of the key and of type {kind}: values of "
                    "this type, or of its collation, cannot be told apart in a replica",
                    "docs/replicas.md lists the types that a key may have.",
                )
        spec.check(full, {name: kind for name, kind, *_ in columns}, key)
        described = tuple(
            SourceColumn(name, "text" if name in spec.mask else kind, comment)
            for name, kind, _, _, comment in columns
            if name not in spec.exclude
        )
        for each in described:
            # In any case, because Spark ignores the case of names.
            if each.name.lower().startswith("__pgque"):
                raise InvalidArgument(
                    f"column {each.name} of {full} has a name that replicas use",
                    "Rename it, or leave it out by exclude: names that begin with __pgque are "
                    "reserved.",
                )
        missing, unused = facts.pop("missing") or {}, frozenset(facts.pop("unused") or ())
        kept = {name: each or {} for name, each in facts.items()} | {"spec": spec.shape()}
        text = json.dumps(kept, sort_keys=True, separators=(",", ":"))
        return SourceTable(full, tuple(path), described, key, text, spec, missing, unused)


@dataclass
class Matching:
    """The tables that a list of names stands for.

    Attributes:
        specs: the tables that can be replicated.
        left_out: tables that match a name with `*` but cannot be replicated, with the reason.
    """

    specs: list[TableSpec] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


def expanded(
    session: Session,
    tables: Sequence[str | TableSpec],
    check: Callable[[SourceTable], object] = lambda source: None,
) -> Matching:
    """Replaces names with `*`, such as `billing.*`, by the tables that have such a name.

    Views, foreign tables and partitions do not count. If a table is also named directly, it
    appears once, as it is named.

    Args:
        session: a session of the tables' database.
        tables: the names, or the specs.
        check: raises `InvalidArgument` for a table that cannot be replicated for another reason.

    Raises:
        InvalidArgument: if a name matches no table, or has `*` in the schema or in a spec; or if no
            table is left.
    """
    specs = [TableSpec.of(each) for each in tables]
    named = {spec.source: spec for spec in specs if not spec.is_pattern}
    found = Matching([*named.values()])
    for spec in specs:
        if not spec.is_pattern:
            continue
        schema, name = spec.path
        if "*" in schema or spec.is_of_columns or spec.mode == APPEND:
            raise InvalidArgument(
                f"{spec.source} does not name tables of one schema, or has options for columns",
                "Write * after the schema, as in billing.*; name tables directly to set options.",
            )
        matching = session.run(
            Call(_MATCHING, (schema, like_pattern(name)), lambda rows: [table for (table,) in rows])
        )
        if not matching:
            raise InvalidArgument(
                f"no table of database {session.database} has a name like {spec.source}",
                "Correct the name, or create the tables first.",
            )
        for table in matching:
            if table in named:
                continue
            named[table] = TableSpec(table, arrays=spec.arrays)
            try:
                check(SourceTable.find(session, table))
            except InvalidArgument as error:
                found.left_out[table] = str(error)
            else:
                found.specs.append(named[table])
    if not found.specs:
        raise InvalidArgument(f"no table can be replicated: {' '.join(found.left_out.values())}")
    return found


def like_pattern(name: str) -> str:
    """Returns the LIKE pattern for a name with `*`."""
    literal = name.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return literal.replace("*", "%")


def estimates(queue: str, tables: Sequence[str]) -> Call[dict[str, Estimate]]:
    """Returns what PostgreSQL knows about those tables that are captured into a queue and exist."""
    return Call(
        _ESTIMATES,
        (queue, list(tables)),
        lambda rows: {name: Estimate(*found) for name, *found in rows},
    )
