"""Tables whose changes are captured into a queue, as the source of replicas."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from .errors import DatabaseError, InvalidArgument, PermissionDenied, PgqueError
from .operation import Call, Row, Steps, first, nothing
from .producing import send
from .queues import check_queue
from .session import Session
from .table_spec import APPEND, TableSpec

# The type of an event after which a table is copied again.
COPY = "copy"
# How its payload begins if one consumer is to copy it.
REQUEST = '{"consumer":'
_MATCHING = """
select pgque.capture_table(c.oid)
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = %s and c.relname like %s and c.relkind in ('r', 'p') and not c.relispartition
order by 1
"""


# Of a table that was never analyzed, the number of rows is -1.
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


@dataclass(frozen=True)
class Estimate:
    """What PostgreSQL knows of a table without reading it.

    Attributes:
        rows: about how many rows it has; None if nobody knows.
        size: in bytes, with its indexes.
        captured_since: None if it is not captured, or by a role that does not own it.
    """

    rows: int | None
    size: int
    captured_since: datetime | None


@dataclass(frozen=True)
class SourceColumn:
    """A column of a table, as events have it.

    Attributes:
        name: its name.
        data_type: its type as PostgreSQL prints it; of a domain, the type that it is made of.
        comment: its comment in PostgreSQL.
    """

    name: str
    data_type: str
    comment: str | None


@dataclass(frozen=True)
class SourceTable:
    """A table of PostgreSQL, as it was when it was looked at.

    Attributes:
        name: schema and name, as events have it.
        path: the same without quotes.
        columns: its columns.
        key: the columns of its key; none if rows are only appended.
        shape: changes if anything happens to the table that its triggers do not report, or if
            something else of it is replicated.
        spec: what of it is replicated. Its columns are those of the replica: masked ones are text.
    """

    name: str
    path: tuple[str, ...]
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...]
    shape: str
    spec: TableSpec

    @staticmethod
    def find(session: Session, table: str | TableSpec, queue: str | None = None) -> "SourceTable":
        """Looks at a table.

        Args:
            session: of its database.
            table: its name, with a schema or without, or what of it is replicated.
            queue: the queue whose triggers count for its shape; None for none.

        Raises:
            InvalidArgument: if there is no such table, it has no key, or a key by which rows of
                another system cannot be found; or if its spec does not fit.
            PermissionDenied: if the role may not read it.
        """
        spec = TableSpec.of(table)
        name = spec.source
        full, path, shape, why, grant = session.run(
            Call(
                "select t.name, parse_ident(t.name), pgque.table_shape(to_regclass(t.name), %s), ("
                " select case when c.relkind not in ('r', 'p') then 'is a view or the like'"
                " when c.relpersistence = 'u' then 'is unlogged'"
                " when exists (select from pgque.capture_relations(c.oid) r join pg_class p"
                " on p.oid = r and p.relpersistence = 'u') then 'has an unlogged partition'"
                " when c.relpersistence = 't' then 'is temporary'"
                " when c.relkind = 'r' and exists (select from pg_inherits where inhparent = c.oid)"
                " then 'has tables that inherit it' else pgque.capture_gap(c.oid) end"
                " from pg_class c where c.oid = to_regclass(t.name)),"
                " case when not has_table_privilege(to_regclass(t.name), 'select')"
                " then format('grant select on %%s to %%I;', t.name, current_user)"
                " when row_security_active(to_regclass(t.name)) then format("
                "'alter role %%I bypassrls; by a superuser, or, if the role owns the table, "
                "alter table %%s no force row level security;', current_user, t.name) end "
                "from (select pgque.capture_table(to_regclass(%s)) as name) t",
                (queue, name),
                lambda rows: rows[0],
            )
        )
        if why is not None:
            raise InvalidArgument(
                f"a replica of table {full} could differ from it unseen, because it {why}",
                "Leave it out, or copy its rows into a table of its own.",
            )
        if shape is None:
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
            # In any case, because Spark takes names that differ in it for one.
            if each.name.lower().startswith("__pgque"):
                raise InvalidArgument(
                    f"column {each.name} of {full} has a name that replicas use",
                    "Rename it, or leave it out by exclude: names that begin with __pgque are "
                    "reserved.",
                )
        return SourceTable(full, tuple(path), described, key, shape + spec.shape(), spec)


@dataclass
class Matching:
    """The tables that names stand for.

    Attributes:
        specs: those that can be replicated.
        left_out: those that a name with `*` matches and that cannot be, each with the reason.
    """

    specs: list[TableSpec] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


def expanded(
    session: Session,
    tables: Sequence[str | TableSpec],
    check: Callable[[SourceTable], object] = lambda source: None,
) -> Matching:
    """Replaces names with `*`, such as `billing.*`, by the tables that have such a name.

    Views, foreign tables and partitions do not count. A table that is named besides
    is there once, as it is named.

    Args:
        session: of the database of the tables.
        tables: the names, or what of the tables is replicated.
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
        if "*" in schema or spec.exclude or spec.mask or spec.mode == APPEND:
            raise InvalidArgument(
                f"{spec.source} does not name tables of one schema, or has columns of one table",
                "Write * after the schema, as in billing.*; name a table with exclude, mask, mode.",
            )
        matching = session.run(
            Call(_MATCHING, (schema, like_pattern(name)), lambda rows: [table for (table,) in rows])
        )
        if not matching:
            raise InvalidArgument(
                f"no table of database {session.database} has a name like {spec.source}",
                "Correct the name, or create the tables before.",
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
    """Returns a name with `*` as a pattern of LIKE."""
    literal = name.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return literal.replace("*", "%")


def captured_tables(session: Session, queue: str) -> dict[str, str | None]:
    """Returns the tables that are captured into a queue, each with what is wrong with its triggers.

    Args:
        session: of the database.
        queue: the queue's name.

    Raises:
        InvalidArgument: if another table sends its changes under the name of one, such as a
            partition that was detached.
    """
    rows = session.run(
        Call(
            "select table_name, count(*), string_agg(problem, '; ') "
            "from pgque.captured_tables(%s) group by 1",
            (queue,),
            list,
        )
    )
    if twice := [(name, problem) for name, count, problem in rows if count > 1]:
        ((name, problem), *_) = twice
        raise InvalidArgument(
            f"several tables send their changes to queue {queue} as {name}: {problem}",
            f"Then {name} is copied again.",
        )
    return {name: problem for name, _, problem in rows}


def estimates(queue: str, tables: Sequence[str]) -> Call[dict[str, Estimate]]:
    """Asks what PostgreSQL knows of tables that are captured into a queue.

    Args:
        queue: the queue's name.
        tables: their names. One that does not exist is left out.
    """
    return Call(
        _ESTIMATES,
        (queue, list(tables)),
        lambda rows: {name: Estimate(*found) for name, *found in rows},
    )


def capture(session: Session, queue: str, source: SourceTable) -> None:
    """Captures a table, or mends its triggers; a table that is captured loses nothing.

    Args:
        session: of the database, with a role that may create triggers on the table.
        queue: the queue for its changes.
        source: the table.

    Raises:
        PermissionDenied: if the role may not create triggers on the table.
        InvalidArgument: if the table cannot be captured.
    """
    capture_by_name(session, queue, source.name, append=not source.key)


def capture_call(source: SourceTable, queue: str) -> str:
    """Returns the statement by which the owner of a table captures it."""
    return _capture_call(source.name, queue, append=not source.key)


def _capture_call(table: str, queue: str, *, append: bool) -> str:
    return f"select pgque.capture('{table}', '{queue}'{', true' if append else ''});"


def capture_by_name(session: Session, queue: str, table: str, *, append: bool) -> int:
    """Captures a table as `capture` does, and returns how many tables have the triggers."""
    session.run(_check_table(table))
    capturing = Call("select pgque.capture(%s::regclass, %s, %s)", (table, queue, append), first)
    try:
        return int(session.run(capturing))
    except PermissionDenied as error:
        raise PermissionDenied(
            str(error.args[0]),
            f"Let the table's owner run: {_capture_call(table, queue, append=append)}",
        ) from error


def uncapture_by_name(queue: str, table: str) -> Steps[int]:
    """Ends the capture of a table, and returns how many tables had the triggers."""
    yield check_queue(queue)
    yield _check_table(table)
    found: int = yield Call("select pgque.uncapture(%s::regclass, %s)", (table, queue), first)
    return found


def _check_table(table: str) -> Call[None]:
    """Refuses a name that no table has."""

    def parse(rows: list[Row]) -> None:
        if rows[0][0] is None:
            raise InvalidArgument(
                f"database {rows[0][1]} has no table {table}",
                "Create it, or correct its name; a name without a schema is looked up by the "
                "search_path.",
            )

    return Call("select to_regclass(%s), current_database()", (table,), parse)


def capture_new(
    session: Session,
    queue: str,
    tables: Sequence[str | TableSpec],
    check: Callable[[SourceTable], object] = lambda source: None,
) -> dict[str, bool]:
    """Captures the tables that are not captured yet, and has the next batch copy each of them.

    Args:
        session: of the database, with a role that may create triggers on the tables.
        queue: the queue for their changes.
        tables: their names, or what of them is replicated.
        check: raises `InvalidArgument` for a table that cannot be replicated for another reason.

    Returns:
        The name of each table, as events have it, and whether it was captured now.

    Raises:
        InvalidArgument: if a table cannot be replicated. The others are captured nevertheless.
        PermissionDenied: if the role may not create triggers on a table. The same holds.
    """
    captured = captured_tables(session, queue)
    is_new: dict[str, bool] = {}
    refused: list[PgqueError] = []
    for table in tables:
        try:
            source = SourceTable.find(session, table)
            check(source)
            if source.name in captured:
                is_new[source.name] = False
            else:
                with session.transaction():
                    capture(session, queue, source)
                    request_copy(session, queue, source.name)
                is_new[source.name] = True
        except (InvalidArgument, PermissionDenied, DatabaseError) as error:
            refused.append(error)
    if len(refused) > 1:
        raise InvalidArgument(" ".join(map(str, refused)))
    if refused:
        raise refused[0]
    return is_new


def copy_again(session: Session, queue: str, consumer: str, table: str) -> None:
    """Has a consumer copy a table again, also if a batch that fails is open.

    Args:
        session: of the database.
        queue: the queue of its changes.
        consumer: the consumer that replicates it.
        table: schema and name.
    """
    session.run(
        Call("select pgque.forget_replicated(%s, %s, %s)", (queue, consumer, table), nothing)
    )
    request_copy(session, queue, table, consumer)


def request_copy(session: Session, queue: str, table: str, consumer: str | None = None) -> None:
    """Has the next batch copy a table, whether or not it was copied before.

    Args:
        session: of the database.
        queue: the queue of its changes.
        table: schema and name.
        consumer: the consumer that copies it; None for all.
    """
    data = "{}" if consumer is None else copy_request(consumer)
    session.run(send(queue, data, type=COPY, partition_key=table))


def copy_request(consumer: str) -> str:
    """Returns the payload of an event that has a consumer copy a table."""
    return REQUEST + json.dumps(consumer) + "}"
