"""From JSON payloads to typed columns, with the reason for each that does not fit."""

from collections.abc import Iterator, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

# An event's id; whether it does not fit; its payload, where it does not; and why.
ID = "_pgque_id"
MALFORMED = "_pgque_malformed"
TEXT = "_pgque_text"
REASON = "_pgque_reason"
REASON_PREFIX = "malformed payload: "
_CORRUPT = "_pgque_corrupt"
_PARSED = "_pgque_parsed"
_TOP = "_pgque_top"


def parse(events: DataFrame, fields: StructType, *, keep: Sequence[str]) -> DataFrame:
    """Parses the column ev_data.

    Args:
        events: a DataFrame with ev_id, ev_data and the columns to keep.
        fields: the fields to read; those that are not nullable must be there, at any depth.
        keep: columns to keep.

    Returns:
        A DataFrame of the kept columns, `ID`, the fields, `MALFORMED`, and `TEXT` where that is
        true.
    """
    text = f.col("ev_data")
    # Under a name of its own: a payload may have a field ev_id, too.
    event_id = f.col("ev_id").alias(ID)
    payload = _from_json(text, fields.fields).alias(_PARSED)
    parsed = events.select(*keep, event_id, text.alias(TEXT), payload)
    columns = _columns(fields)
    nulls = (
        is_null
        for x in fields
        for _, is_null in _nulls(columns[x.name], x.dataType, x.nullable, "")
    )
    corrupt = f.col(_PARSED).isNull() | f.col(_PARSED)[_CORRUPT].isNotNull()
    malformed = reduce(Column.__or__, nulls, corrupt)
    return parsed.select(
        *keep,
        ID,
        *(column.alias(name) for name, column in columns.items()),
        malformed.alias(MALFORMED),
        f.when(malformed, f.col(TEXT)).alias(TEXT),
    )


def explain(malformed: DataFrame, fields: StructType) -> DataFrame:
    """Says why payloads do not fit. They are parsed once more, as a map of texts.

    Args:
        malformed: what is malformed of a DataFrame that `parse` returned.
        fields: the fields that were to be read.

    Returns:
        A DataFrame of ev_id, `REASON` and `TEXT`.
    """
    # Fitting payloads to the fields anew costs more than the map: each that does not fit throws.
    parsed = malformed.select(
        "*", f.from_json(TEXT, MapType(StringType(), StringType())).alias(_TOP)
    )
    top, columns = f.col(_TOP), {name: f.col(quoted(name)) for name in fields.names}
    problems = f.concat_ws(", ", *(_problem(x, columns[x.name], top) for x in fields))
    why = (
        f.when(top.isNotNull() & (problems != ""), problems)
        # Such as a name that is there twice.
        .when(top.isNotNull(), f.lit("does not fit the schema"))
        .when(f.expr(f"try_parse_json({TEXT}) is null"), f.lit("no JSON"))
        .otherwise(f.lit("JSON, but no object"))
    )
    return parsed.select(f.col(ID).alias("ev_id"), reason(why), TEXT)


def reason(why: Column) -> Column:
    """Returns `REASON` from a text."""
    return f.concat(f.lit(REASON_PREFIX), why).alias(REASON)


def quoted(name: str) -> str:
    """Returns a column's name as Spark takes it literally."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def _from_json(text: Column, fields: Sequence[StructField]) -> Column:
    """Parses what fits; the field `_CORRUPT` is set where something does not."""
    struct = StructType([*fields, StructField(_CORRUPT, StringType())])
    return f.from_json(text, struct, {"columnNameOfCorruptRecord": _CORRUPT})


def _columns(fields: StructType) -> dict[str, Column]:
    return {field.name: f.col(_PARSED)[field.name] for field in fields}


def _problem(field: StructField, value: Column, top: Column) -> Column:
    """Returns what is wrong with one field, or null. `top` is the payload as a map of texts."""
    name = field.name
    is_given = top[name].isNotNull()
    if isinstance(field.dataType, StructType | ArrayType | MapType):
        # What fits of it was read, so only a second look tells.
        is_misfit = is_given & _from_json(f.col(TEXT), [field])[_CORRUPT].isNotNull()
    else:
        is_misfit = is_given & value.isNull()
    result = f.when(is_misfit, f.lit(f"{name} is no {field.dataType.simpleString()}"))
    for path, is_null in _nulls(value, field.dataType, field.nullable, name):
        if path == name:
            is_absent = is_null & ~f.map_contains_key(top, f.lit(name))
            result = result.when(is_absent, f.lit(f"{name} is missing"))
        result = result.when(is_null, f.lit(f"{path} is null"))
    return result


def _nulls(
    value: Column, data_type: DataType, nullable: bool, path: str
) -> Iterator[tuple[str, Column]]:
    """Yields where a null stands against the schema: the path, and whether there is one."""
    if not nullable:
        yield path, value.isNull()
    if isinstance(data_type, StructType):
        for field in data_type:
            inside = _nulls(
                value[field.name], field.dataType, field.nullable, f"{path}.{field.name}"
            )
            yield from ((where, value.isNotNull() & is_null) for where, is_null in inside)
    elif isinstance(data_type, MapType):
        values = ArrayType(data_type.valueType, data_type.valueContainsNull)
        yield from _nulls(f.map_values(value), values, True, path)
    elif isinstance(data_type, ArrayType):
        yield from _nulls_of_elements(value, data_type, f"{path}[]")


def _nulls_of_elements(
    value: Column, data_type: ArrayType, path: str
) -> Iterator[tuple[str, Column]]:
    """The same for all elements of an array."""

    def some(number: int) -> Column:
        return f.exists(value, lambda element: checks(element)[number][1])

    def checks(element: Column) -> list[tuple[str, Column]]:
        return list(_nulls(element, data_type.elementType, data_type.containsNull, path))

    for number, (where, _) in enumerate(checks(value)):
        yield where, f.coalesce(some(number), f.lit(False))
