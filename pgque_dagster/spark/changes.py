"""Changes of a table, as jsontriga, logutriga and sqltriga publish them, as columns.

Formats: docs/triggers.md. Events say themselves which of the first two made them. A fragment of
SQL, as sqltriga makes it, stays text: an update shows only what changed, and only PostgreSQL reads
its literals rightly.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from ..client.errors import InvalidArgument
from .payload import MALFORMED, TEXT, reason

COLUMNS = ("operation", "table", "key", "row")
FRAGMENT_COLUMNS = ("operation", "table", "fragment")
EVENT_COLUMNS = ("ev_id", "ev_type", "ev_data", "ev_extra1")

_TRUNCATE = "truncate"
_LETTERS = {"I": "insert", "U": "update", "D": "delete", "R": _TRUNCATE}
_WORDS = {word.upper(): word for word in _LETTERS.values()}
_VALUES = "_pgque_values"
_OPERATION = "_pgque_operation"


def check(fields: StructType, key: Sequence[str]) -> None:
    """Looks whether rows can be read so.

    Raises:
        InvalidArgument: if there is no key, a column of it is not in the schema, or a type of the
            schema is none that the text of a value can be cast to.
    """
    for field in fields:
        if isinstance(field.dataType, StructType | ArrayType | MapType):
            raise InvalidArgument(
                f"{field.name} is of type {field.dataType.simpleString()}, but triggers publish"
                " such values as text",
                "Read it as string, and JSON from it with from_json.",
            )
    unknown = [name for name in key if name not in fields.names]
    if isinstance(key, str) or unknown or not key:
        raise InvalidArgument(
            f"the key is {key!r}, but the schema has {', '.join(fields.names)}",
            "List columns of the schema: key=['id'].",
        )


def parse(
    events: DataFrame, fields: StructType, *, key: Sequence[str], keep: Sequence[str]
) -> DataFrame:
    """Parses events of jsontriga and logutriga.

    Args:
        events: a DataFrame of `EVENT_COLUMNS` and the columns to keep.
        fields: the table's columns to read; those that are not nullable must be there.
        key: those that identify a row.
        keep: event columns to keep.

    Returns:
        A DataFrame of the kept columns, `COLUMNS`, `MALFORMED`, `REASON` and `TEXT`. A truncate
        has neither key nor row.
    """
    is_json = f.startswith(f.col("ev_type"), f.lit("{"))
    head = f.from_json("ev_type", "op string, `table` array<string>")
    letter = f.regexp_extract("ev_type", "^([IUD]:|R$)", 1).substr(1, 1)
    read = events.select(
        *keep,
        f.when(is_json, _named(head["op"], _WORDS))
        .otherwise(_named(letter, _LETTERS))
        .alias(_OPERATION),
        f.coalesce(f.col("ev_extra1"), f.concat_ws(".", head["table"])).alias("table"),
        f.when(is_json, _json_values(f.col("ev_data")))
        .otherwise(_url_values(f.col("ev_data")))
        .alias(_VALUES),
        f.col("ev_data").alias(TEXT),
    )
    operation, values = f.col(_OPERATION), f.col(_VALUES)
    columns = {x.name: _typed(values[x.name], x.dataType) for x in fields}
    why = (
        f.when(operation.isNull(), f.lit("ev_type is none of jsontriga or logutriga"))
        .when(operation == _TRUNCATE, f.lit(""))
        .when(values.isNull(), f.lit("ev_data is no row"))
        .otherwise(
            f.concat_ws(
                ", ", *(_problem(x, values, columns[x.name], x.name in key) for x in fields)
            )
        )
    )
    has_row = operation != _TRUNCATE
    return read.select(
        *keep,
        operation.alias("operation"),
        "table",
        f.when(has_row, f.struct(*(columns[name].alias(name) for name in key))).alias("key"),
        f.when(has_row, f.struct(*(c.alias(name) for name, c in columns.items()))).alias("row"),
        (why != "").alias(MALFORMED),
        reason(why),
        TEXT,
    )


def fragments(events: DataFrame, *, keep: Sequence[str]) -> DataFrame:
    """Names what sqltriga published.

    Args:
        events: a DataFrame of `EVENT_COLUMNS` and the columns to keep.
        keep: event columns to keep.

    Returns:
        A DataFrame of the kept columns, `FRAGMENT_COLUMNS`, `MALFORMED`, `REASON` and `TEXT`.
    """
    operation = _named(f.col("ev_type"), _LETTERS)
    return events.select(
        *keep,
        operation.alias("operation"),
        f.col("ev_extra1").alias("table"),
        f.when(operation != _TRUNCATE, f.col("ev_data")).alias("fragment"),
        operation.isNull().alias(MALFORMED),
        reason(f.lit("ev_type is none of sqltriga")),
        f.col("ev_data").alias(TEXT),
    )


def _named(value: Column, names: dict[str, str]) -> Column:
    return f.coalesce(*(f.when(value == given, f.lit(name)) for given, name in names.items()))


def _json_values(text: Column) -> Column:
    return f.from_json(text, MapType(StringType(), StringType()))


def _url_values(text: Column) -> Column:
    """Returns name=value&… as a map, or null where it is something else: repeated names, say."""
    pairs = f.split(text, "&")
    names = f.transform(pairs, lambda pair: f.try_url_decode(f.substring_index(pair, "=", 1)))
    values = f.transform(
        pairs,
        lambda pair: f.when(
            f.contains(pair, f.lit("=")), f.try_url_decode(f.substring_index(pair, "=", -1))
        ),
    )
    is_map = ~f.exists(names, lambda name: name.isNull()) & (
        f.size(f.array_distinct(names)) == f.size(names)
    )
    return f.when(is_map, f.map_from_arrays(names, values))


def _typed(text: Column, data_type: DataType) -> Column:
    """Reads a value as PostgreSQL prints it; null where it is none of that type."""
    if isinstance(data_type, BinaryType):
        return f.when(f.startswith(text, f.lit("\\x")), f.unhex(f.substring(text, 3, 2**31 - 1)))
    return text if isinstance(data_type, StringType) else text.try_cast(data_type)


def _problem(field: StructField, values: Column, typed: Column, is_key: bool) -> Column:
    is_misfit = values[field.name].isNotNull() & typed.isNull()
    result = f.when(is_misfit, f.lit(f"{field.name} is no {field.dataType.simpleString()}"))
    if is_key or not field.nullable:
        is_there = f.map_contains_key(values, f.lit(field.name))
        result = result.when(~is_there, f.lit(f"{field.name} is missing"))
        result = result.when(typed.isNull(), f.lit(f"{field.name} is null"))
    return result
