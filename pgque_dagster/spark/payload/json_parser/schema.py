"""Chooses the reader of each Spark type."""

from functools import partial

import pyarrow as pa
from pyspark.sql import types as t

from ....client.errors import InvalidArgument
from . import scalars
from .columns import (
    BinaryReader,
    DecimalReader,
    FloatReader,
    Reader,
    ScalarReader,
    TextReader,
    bounded,
)
from .nested import ArrayReader, MapReader, StructReader

_INTEGERS: dict[type[t.DataType], tuple[int, pa.DataType]] = {
    t.ByteType: (8, pa.int8()),
    t.ShortType: (16, pa.int16()),
    t.IntegerType: (32, pa.int32()),
    t.LongType: (64, pa.int64()),
}
# Arrow reads fractions of at most six digits.
_CLOCK = scalars.CLOCK.replace("0*", "")
LOCAL = f"{scalars.DATE}[T ]{_CLOCK}"
# Without the first and last year: an offset could lead out of the years 1 to 9999.
INSTANT = (
    "(?:000[2-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-8][0-9]{3}|9[0-8][0-9]{2}|99[0-8][0-9]|999[0-8])"
    f"{scalars.DAY_OF_YEAR}[T ]{_CLOCK}{scalars.ZONE}"
)


def struct_reader(schema: t.StructType, nullable: bool = False, path: str = "") -> StructReader:
    """Returns the reader of a struct.

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
        fields[field.name] = _reader(field.dataType, field.nullable, where)
    return StructReader(schema.simpleString(), nullable, fields)


def _reader(data_type: t.DataType, nullable: bool, path: str) -> Reader:
    if isinstance(data_type, t.StructType):
        return struct_reader(data_type, nullable, path)
    name = data_type.simpleString()
    if isinstance(data_type, t.ArrayType):
        inside = _reader(data_type.elementType, data_type.containsNull, f"{path}[]")
        return ArrayReader(name, nullable, inside)
    if isinstance(data_type, t.MapType) and type(data_type.keyType) is t.StringType:
        inside = _reader(data_type.valueType, data_type.valueContainsNull, f"{path}[]")
        return MapReader(name, nullable, inside)
    return _scalar_reader(data_type, name, nullable, path)


def _scalar_reader(data_type: t.DataType, name: str, nullable: bool, path: str) -> Reader:
    kind = type(data_type)
    if kind in _INTEGERS:
        bits, arrow = _INTEGERS[kind]
        take = partial(scalars.take_integer, bits=bits)
        return ScalarReader(name, nullable, arrow, bounded(bits), take)
    if isinstance(data_type, t.DecimalType):
        return DecimalReader(name, nullable, data_type.precision, data_type.scale)
    if kind is t.StringType:
        return ScalarReader(name, nullable, pa.string(), str, scalars.take_string)
    if kind is t.BooleanType:
        return ScalarReader(name, nullable, pa.bool_(), bool, scalars.take_boolean)
    if kind is t.DoubleType:
        return ScalarReader(name, nullable, pa.float64(), float, scalars.take_double)
    if kind is t.FloatType:
        return FloatReader(name, nullable, pa.float32(), float, scalars.take_float)
    if kind is t.BinaryType:
        return BinaryReader(name, nullable, pa.binary(), str, scalars.take_binary)
    if kind is t.DateType:
        return TextReader(name, nullable, pa.date32(), scalars.take_date, scalars.DATE)
    if kind is t.TimestampType:
        take_instant = partial(scalars.take_timestamp, zoned=True)
        return TextReader(name, nullable, pa.timestamp("us", "UTC"), take_instant, INSTANT)
    if kind is t.TimestampNTZType:
        take_local = partial(scalars.take_timestamp, zoned=False)
        return TextReader(name, nullable, pa.timestamp("us"), take_local, LOCAL)
    raise InvalidArgument(
        f"{path} is of type {name}, and no JSON value is read as one",
        "docs/payloads.md has the types; keep ev_data, and read this field from it with Spark.",
    )
