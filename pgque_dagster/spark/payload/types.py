"""Chooses the reader of each Spark type: for JSON, and for values as PostgreSQL prints them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import types as t

from ...client.errors import InvalidArgument
from . import values
from .nested import ArrayReader, MapReader, StructReader
from .readers import EachReader, Reader, ScalarReader, TextReader, bounded

# Bits, the Arrow type, and the number of digits that is always in range.
_INTEGERS: dict[type[t.DataType], tuple[int, pa.DataType, int]] = {
    t.ByteType: (8, pa.int8(), 2),
    t.ShortType: (16, pa.int16(), 4),
    t.IntegerType: (32, pa.int32(), 9),
    t.LongType: (64, pa.int64(), 18),
}
_FLOATING: dict[type[t.DataType], pa.DataType] = {
    t.DoubleType: pa.float64(),
    t.FloatType: pa.float32(),
}
# Numbers that are not infinite as a float. -0 is read one by one.
_FLOATS = r"-?[1-9][0-9]{0,17}(?:\.[0-9]{1,20})?(?:e[+-]?[01]?[0-9])?|0|-?0\.[0-9]{1,20}"
# Arrow reads fractions of at most six digits.
_CLOCK = values.CLOCK.replace("0*", "")
_LOCAL = f"{values.DATE}[T ]{_CLOCK}"
# Without the first and last year: an offset could lead out of the years 1 to 9999.
_INSTANT = (
    "(?:000[2-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-8][0-9]{3}|9[0-8][0-9]{2}|99[0-8][0-9]|999[0-8])"
    f"{values.DAY_OF_YEAR}[T ]{_CLOCK}{values.ZONE}"
)


def struct_reader(schema: t.StructType, nullable: bool = False, path: str = "") -> StructReader:
    """Returns the reader of a JSON object.

    Args:
        schema: its fields.
        nullable: whether it may be null.
        path: its path in the payload.

    Raises:
        InvalidArgument: if a name occurs twice, or no JSON value is read as one of the types.
    """
    fields: dict[str, Reader] = {}
    for field in schema:
        where = f"{path}.{field.name}" if path else field.name
        if field.name in fields:
            raise InvalidArgument(f"the payload schema has {where} twice", "Leave one of them out.")
        check_name(field.name)
        fields[field.name] = _reader(field.dataType, field.nullable, where)
    return StructReader(schema.simpleString(), nullable, fields)


def check_name(name: str) -> None:
    """Refuses a name that msgspec does not read."""
    if any(c in '"\\' or c < " " for c in name):
        raise InvalidArgument(
            f"the field {name!r} has a quote, backslash or control character in its name",
            "Leave it out of the schema, and read it from ev_data with Spark.",
        )


def printed_reader(data_type: t.DataType, nullable: bool, path: str) -> ScalarReader:
    """Returns the reader of a column's values as PostgreSQL prints them.

    Args:
        data_type: the Spark type.
        nullable: whether null is allowed.
        path: the column's name.

    Raises:
        InvalidArgument: if no value is read as this type.
    """
    name, kind = data_type.simpleString(), type(data_type)

    def from_text(arrow: pa.DataType, take: Callable[[Any], Any], pattern: str) -> TextReader:
        return TextReader(name, nullable, arrow, str, take, pattern)

    if kind in _INTEGERS:
        bits, arrow, digits = _INTEGERS[kind]
        whole = f"-?(?:0|[1-9][0-9]{{0,{digits - 1}}})"
        return from_text(arrow, partial(values.printed_integer, bits=bits), whole)
    if kind in _FLOATING:
        arrow = _FLOATING[kind]
        return from_text(arrow, partial(values.printed_floating, kind=arrow), _FLOATS)
    if kind is t.BooleanType:
        return EachReader(name, nullable, pa.bool_(), str, values.printed_boolean)
    if kind is t.BinaryType:
        return EachReader(name, nullable, pa.binary(), str, values.printed_binary)
    if kind is t.TimestampType:
        return from_text(pa.timestamp("us", "UTC"), values.printed_timestamp, _INSTANT)
    if reader := _text_reader(data_type, nullable, decimals=str):
        return reader
    raise InvalidArgument(
        f"{path} is of type {name}, and no value that a trigger publishes is read as one",
        "Read it as string, and take what you need from that with Spark.",
    )


def _reader(data_type: t.DataType, nullable: bool, path: str) -> Reader:
    """Returns the reader of a JSON value."""
    name, kind = data_type.simpleString(), type(data_type)
    if isinstance(data_type, t.StructType):
        return struct_reader(data_type, nullable, path)
    if isinstance(data_type, t.ArrayType):
        inside = _reader(data_type.elementType, data_type.containsNull, f"{path}[]")
        return ArrayReader(name, nullable, inside)
    if isinstance(data_type, t.MapType) and type(data_type.keyType) is t.StringType:
        inside = _reader(data_type.valueType, data_type.valueContainsNull, f"{path}[]")
        return MapReader(name, nullable, inside)
    if kind in _INTEGERS:
        bits, arrow, _ = _INTEGERS[kind]
        take = partial(values.take_integer, bits=bits)
        return ScalarReader(name, nullable, arrow, bounded(bits), take)
    if kind is t.BooleanType:
        return ScalarReader(name, nullable, pa.bool_(), bool, values.take_boolean)
    if kind in _FLOATING:
        arrow = _FLOATING[kind]
        take_floating = partial(values.take_floating, kind=arrow)
        if kind is t.DoubleType:
            return ScalarReader(name, nullable, arrow, float, take_floating)
        return TextReader(name, nullable, arrow, msgspec.Raw, take_floating, _FLOATS)
    if kind is t.BinaryType:
        return EachReader(name, nullable, pa.binary(), str, values.take_binary)
    if kind is t.TimestampType:
        take_instant = partial(values.take_timestamp, zoned=True)
        return TextReader(name, nullable, pa.timestamp("us", "UTC"), str, take_instant, _INSTANT)
    if reader := _text_reader(data_type, nullable, decimals=msgspec.Raw):
        return reader
    raise InvalidArgument(
        f"{path} is of type {name}, and no JSON value is read as one",
        "docs/payloads.md has the types; keep ev_data, and read this field from it with Spark.",
    )


def _text_reader(data_type: t.DataType, nullable: bool, *, decimals: Any) -> ScalarReader | None:
    """Returns the reader of a type whose texts are the same in JSON and PostgreSQL.

    Args:
        data_type: the Spark type.
        nullable: whether null is allowed.
        decimals: what the text of a decimal is decoded to; raw JSON may have quotes.
    """
    name, kind = data_type.simpleString(), type(data_type)
    if kind is t.StringType:
        return ScalarReader(name, nullable, pa.string(), str, values.take_string)
    if kind is t.DateType:
        return TextReader(name, nullable, pa.date32(), str, values.take_date, values.DATE)
    if kind is t.TimestampNTZType:
        take_local = partial(values.take_timestamp, zoned=False)
        return TextReader(name, nullable, pa.timestamp("us"), str, take_local, _LOCAL)
    if isinstance(data_type, t.DecimalType):
        precision, scale = data_type.precision, data_type.scale
        whole = f"(?:0|[1-9][0-9]{{0,{precision - scale - 1}}})" if precision > scale else "0"
        fraction = f"(?:\\.[0-9]{{1,{scale}}})?" if scale else ""
        quote = '"?' if decimals is msgspec.Raw else ""
        return TextReader(
            name,
            nullable,
            pa.decimal128(precision, scale),
            decimals,
            partial(values.take_decimal, precision=precision, scale=scale),
            f"{quote}-?{whole}{fraction}{quote}",
        )
    return None
