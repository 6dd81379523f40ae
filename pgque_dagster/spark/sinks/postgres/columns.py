"""Checks which Spark types a column of a PostgreSQL table accepts, so that no value changes.

Unlisted pairs of types are refused before Spark starts. If a column may not hold all values of its
pair, the rows are staged unchanged and each value is compared with its cast to the column's
type.
"""

from dataclasses import dataclass

from psycopg import sql
from pyspark.sql.types import DataType, StructType

from ....client.errors import InvalidArgument
from ....client.rights import Connection

# Conditions that are true for a value that the column would change or refuse. {c} is the staged
# value, {type} the column's type, {staged} the type of the staged value.
_CHANGED = "{c}::{type}::{staged} is distinct from {c}"
_SPELT_OTHERWISE = "format('%s', {c}::{type}) collate \"C\" <> {c}"
_NO_UUID = "{c}::{type}::text <> lower({c})"
# The cast itself fails.
_UNREADABLE = "{c} is not null and {c}::{type} is null"

# For each Spark type: the type in the stage, and the column types that accept it. `True`
# means that a column without a length, precision or scale holds every value.
_INTEGERS = {"int4": True, "int8": True, "numeric": True, "float8": True}
_TAKEN: dict[str, tuple[str, dict[str, bool]]] = {
    "byte": ("smallint", {"int2": True, "float4": True, **_INTEGERS}),
    "short": ("smallint", {"int2": True, "float4": True, **_INTEGERS}),
    "integer": ("integer", {"int2": False, **_INTEGERS}),
    "long": ("bigint", {"int2": False, "int4": False, "int8": True, "numeric": True}),
    # Staged as double, so that sums are doubles.
    "float": ("double precision", {"float4": True, "float8": True}),
    "double": ("double precision", {"float8": True}),
    "decimal": ("numeric", {"numeric": True}),
    "string": ("text", {"text": True, "varchar": True, "bpchar": True}),
    "binary": ("bytea", {"bytea": True}),
    "boolean": ("boolean", {"bool": True}),
    "date": ("date", {"date": True}),
    "timestamp": ("timestamp with time zone", {"timestamptz": True}),
    "timestamp_ntz": ("timestamp without time zone", {"timestamp": True}),
    "time": ("time without time zone", {"time": True}),
    "daytimeinterval": ("interval", {"interval": True}),
}
_TEXTS = {"uuid": _NO_UUID, "json": _UNREADABLE, "jsonb": _UNREADABLE}
_IN_SQL = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "daytimeinterval": "interval day to second",
}
_NESTED = ("array", "map", "struct", "variant")
_LISTED = frozenset(base for _, taken in _TAKEN.values() for base in taken)

_QUERY = """
with recursive part as (
    select a.attnum, a.attname, a.attnotnull, a.atttypid as type, a.atttypmod as modifier,
        0 as depth
    from pg_attribute a
    where a.attrelid = {}::regclass and a.attnum > 0 and not a.attisdropped
    union all
    select p.attnum, p.attname, p.attnotnull, t.typbasetype, t.typtypmod, p.depth + 1
    from part p
    join pg_type t on t.oid = p.type
    where t.typtype = 'd'
)
select distinct on (p.attnum)
    p.attname::text,
    format_type(p.type, p.modifier),
    case when t.typnamespace = 'pg_catalog'::regnamespace then t.typname::text end,
    t.typtype = 'e',
    p.modifier <> -1,
    not p.attnotnull
from part p
join pg_type t on t.oid = p.type
order by p.attnum, p.depth desc
"""


@dataclass(frozen=True)
class StagedColumn:
    """A column of the rows, and how it gets into the table.

    Attributes:
        name: its name in the DataFrame and in the table.
        type: its type in the table; for a domain, the underlying type.
        staged: the type that it is staged as.
        check: a condition on values that the table would change; None if it holds all values.
        nullable: whether the table accepts null.
    """

    name: str
    type: str
    staged: str
    check: str | None
    nullable: bool


@dataclass(frozen=True)
class _TableColumn:
    """A column of the table: its full type, and the name of a built-in type (or None)."""

    type: str
    base: str | None
    is_enum: bool
    has_modifier: bool
    nullable: bool


def fit(
    connection: Connection, target: sql.Identifier, schema: StructType
) -> tuple[StagedColumn, ...]:
    """Matches the columns of a DataFrame to those of a table.

    Raises:
        InvalidArgument: if the table lacks a column, or its column does not accept the type.
    """
    table = target.as_string(connection)
    with connection.transaction():
        # Makes types print with their schema.
        connection.execute("set local search_path to pg_catalog")
        rows = connection.execute(sql.SQL(_QUERY).format(table)).fetchall()
    targets = {name: _TableColumn(*rest) for name, *rest in rows}
    missing = [name for name in schema.names if name not in targets]
    if missing:
        raise InvalidArgument(
            f"table {table} has no column {', '.join(missing)}",
            f"It has: {', '.join(targets)}. Columns are matched by their exact names.",
        )
    return tuple(_fit(field.name, field.dataType, targets[field.name], table) for field in schema)


def _fit(name: str, kind: DataType, target: _TableColumn, table: str) -> StagedColumn:
    spark = kind.typeName()
    if spark == "void":
        return StagedColumn(name, target.type, target.type, None, target.nullable)
    staged, taken = _TAKEN.get(spark, ("", {}))
    check: str | None
    if target.base in taken:
        check = _SPELT_OTHERWISE if staged == "text" else _CHANGED
        if taken[target.base] and not target.has_modifier:
            check = None
        return StagedColumn(name, target.type, staged, check, target.nullable)
    if spark == "string" and target.base not in _LISTED:
        check = _UNREADABLE if target.is_enum else _TEXTS.get(target.base or "", _SPELT_OTHERWISE)
        return StagedColumn(name, target.type, staged, check, target.nullable)
    raise InvalidArgument(
        f"column {name} of {table} is {target.type}, which takes no {kind.simpleString()}",
        _way_out(name, spark, target),
    )


def _way_out(name: str, spark: str, target: _TableColumn) -> str:
    takes = [kind for kind, (_, taken) in _TAKEN.items() if target.base in taken] or ["string"]
    if "string" in takes and spark in _NESTED:
        return f"Make it text with to_json({name})."
    names = [_IN_SQL.get(kind, kind) for kind in takes]
    return f"It takes {', '.join(names)}. Cast {name} in Spark, or change the table's column."
