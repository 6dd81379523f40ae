"""Objects of an attacker: each leaves a mark, that no rollback takes back, when it is used.

They stand in for everything that the queue's functions use from pg_catalog and pgque: functions and
operators of the same arguments, types, and tables and views, in a schema that comes first in the
path and in pg_temp.
"""

import re

from tests.support.queues.sql import Connection, rows, value

SCHEMA = "evil"
SPRUNG = "HJ001"

_FUNCTIONS = """
select p.proname, p.oid::regprocedure::text,
       coalesce((select string_agg(n.nspname || '.' || t.typname, ', ' order by u.nr)
                 from unnest(p.proargtypes) with ordinality u (type, nr)
                 join pg_type t on t.oid = u.type
                 join pg_namespace n on n.oid = t.typnamespace), '') as arguments,
       p.proretset, rn.nspname || '.' || r.typname as result
from pg_proc p
join pg_type r on r.oid = p.prorettype
join pg_namespace rn on rn.oid = r.typnamespace
where p.pronamespace = 'pg_catalog'::regnamespace
  and p.proname = any (%s)
  and not exists (
      select from unnest(p.proargtypes || p.prorettype) u (type)
      join pg_type t on t.oid = u.type
      where t.typtype = 'p' and t.typname not in ('record', 'void'))
  and not ('record'::regtype = any (p.proargtypes))
"""
_OPERATORS = """
select o.oprname, l.typname, r.typname, t.typname
from pg_operator o
join pg_type r on r.oid = o.oprright
join pg_type t on t.oid = o.oprresult
left join pg_type l on l.oid = o.oprleft
where o.oprnamespace = 'pg_catalog'::regnamespace
  and (l.oid is null or l.typtype <> 'p')
  and r.typtype <> 'p' and t.typtype <> 'p'
  and o.oprname = any (%s)
"""
# Forms that pg_catalog has for any types at all, with types that would suit the queue better.
_BETTER_FUNCTIONS = [
    ("format", "text, text", "text"),
    ("format", "text, text, text", "text"),
    ("format", "text, bigint", "text"),
    ("format", "text, integer", "text"),
    ("concat", "text, text", "text"),
    ("array_agg", "text", "text[]"),
    ("array_agg", "bigint", "bigint[]"),
    ("array_append", "text[], text", "text[]"),
    ("array_remove", "text[], text", "text[]"),
    ("array_position", "text[], text", "integer"),
    ("array_to_json", "text[]", "json"),
    ("cardinality", "text[]", "integer"),
    ("cardinality", "bigint[]", "integer"),
    ("coalesce", "text, text", "text"),
    ("count", "bigint", "bigint"),
    ("greatest", "timestamptz, timestamptz", "timestamptz"),
    ("to_json", "text", "json"),
    ("unnest", "text[]", "setof text"),
    ("unnest", "bigint[]", "setof bigint"),
]
_BETTER_OPERATORS = [
    ("=", "text[]", "text[]", "boolean"),
    ("=", "text", "varchar", "boolean"),
    ("=", "bigint[]", "bigint[]", "boolean"),
    ("||", "text[]", "text", "text[]"),
    ("||", "text[]", "text[]", "text[]"),
    ("||", "text", "bigint", "text"),
    ("||", "text", "integer", "text"),
]
_TYPES = [
    *("text", "name", "int4", "int8", "bool", "oid", "xid8", "json", "jsonb", "interval"),
    *("timestamptz", "pg_snapshot", "refcursor", "regclass"),
]


def set_traps(db: Connection) -> int:
    """Creates them all, open to everybody; returns how many."""
    db.execute(f"create schema {SCHEMA}")
    db.execute(f"create sequence {SCHEMA}.marks")
    db.execute(
        f"create function {SCHEMA}.spring() returns boolean language plpgsql security definer as"
        f" $$ begin perform pg_catalog.nextval('{SCHEMA}.marks');"
        f" raise exception using errcode = '{SPRUNG}', message = 'an object of the attacker ran';"
        " end $$"
    )
    count = _set_function_traps(db) + _set_operator_traps(db) + _set_type_traps(db)
    count += _set_relation_traps(db, SCHEMA)
    db.execute(f"grant usage on schema {SCHEMA} to public".encode())
    db.execute(f"grant select on all tables in schema {SCHEMA} to public".encode())
    return count


def set_temporary_traps(db: Connection) -> None:
    """Those that a session can make for itself; pg_temp comes before the path for relations."""
    _set_relation_traps(db, "pg_temp")
    db.execute("create domain pg_temp.text as pg_catalog.text check (evil.spring())")
    db.execute(
        "create function pg_temp.now() returns timestamptz language plpgsql as"
        " $$ begin perform evil.spring(); end $$"
    )


def is_sprung(db: Connection) -> bool:
    """Whether any trap was used since this was asked last. Ask on a connection without traps."""
    sprung: bool = value(db, f"select is_called from {SCHEMA}.marks")
    if sprung:
        value(db, f"select setval('{SCHEMA}.marks', 1, false)")
    return sprung


def _used_words(db: Connection) -> list[str]:
    """The words in the functions' texts, and so at least all functions that they name."""
    texts = rows(db, "select prosrc from pg_proc where pronamespace = 'pgque'::regnamespace")
    return sorted({word for (text,) in texts for word in re.findall(r"[a-z_0-9]+", text)})


def _used_operators(db: Connection) -> list[str]:
    texts = rows(db, "select prosrc from pg_proc where pronamespace = 'pgque'::regnamespace")
    return sorted({word for (text,) in texts for word in re.findall(r"[-+*/<>=~!@#%^&|?]+", text)})


def _set_function_traps(db: Connection) -> int:
    made = [
        (name, arguments, f"{'setof ' if returns_set else ''}{result}")
        for name, _, arguments, returns_set, result in rows(db, _FUNCTIONS, _used_words(db))
    ]
    # Aggregates have one form for each kind of input, some of which differ in the result alone.
    unique = {(name, arguments): result for name, arguments, result in made + _BETTER_FUNCTIONS}
    for (name, arguments), result in unique.items():
        db.execute(
            f'create or replace function {SCHEMA}."{name}"({arguments}) returns {result}'
            f" language plpgsql as $$ begin perform {SCHEMA}.spring(); end $$".encode()
        )
    return len(unique)


def _set_operator_traps(db: Connection) -> int:
    found = [
        (
            name,
            f"pg_catalog.{left}" if left else None,
            f"pg_catalog.{right}",
            f"pg_catalog.{result}",
        )
        for name, left, right, result in rows(db, _OPERATORS, _used_operators(db))
    ]
    unique = {(name, left, right): result for name, left, right, result in found}
    unique |= {(name, left, right): result for name, left, right, result in _BETTER_OPERATORS}
    for number, ((name, left, right), result) in enumerate(unique.items()):
        arguments = f"{left}, {right}" if left else right
        db.execute(
            f"create function {SCHEMA}.operator_{number}({arguments}) returns {result}"
            f" language plpgsql as $$ begin perform {SCHEMA}.spring(); end $$".encode()
        )
        operands = f"leftarg = {left}, rightarg = {right}" if left else f"rightarg = {right}"
        db.execute(
            f"create operator {SCHEMA}.{name} ({operands},"
            f" function = {SCHEMA}.operator_{number})".encode()
        )
    return len(unique)


def _set_type_traps(db: Connection) -> int:
    for name in _TYPES:
        db.execute(
            f"create domain {SCHEMA}.{name} as pg_catalog.{name} check ({SCHEMA}.spring())".encode()
        )
    return len(_TYPES)


def _set_relation_traps(db: Connection, schema: str) -> int:
    """Views in the place of the queue's relations, and of those of the catalog that it reads."""
    relations = rows(
        db,
        "select n.nspname, c.relname, string_agg(format('c.%%I', a.attname), ', ' order by attnum)"
        " from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped"
        "   and a.atttypid <> 'anyarray'::regtype"
        " where (n.nspname = 'pgque' or n.nspname = 'pg_catalog' and c.relname = any (%s))"
        " and c.relkind in ('r', 'v', 'm') group by c.oid, n.nspname",
        _used_words(db),
    )
    for origin, name, columns in relations:
        db.execute(
            f'create view {schema}."{name}" as select {columns} from {origin}."{name}" c'
            f" where {SCHEMA}.spring()".encode()
        )
        db.execute(f'grant select on {schema}."{name}" to public'.encode())
    return len(relations)
