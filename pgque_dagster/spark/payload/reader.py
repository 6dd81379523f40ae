"""Reads JSON objects into Arrow columns of Spark's types, exactly or not at all.

msgspec decodes and checks them as docs/payloads.md says. What it refuses is malformed, with the
reason that msgspec gives.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import pyarrow as pa
from msgspec import Meta
from pyspark.sql import types as t

from ...client.errors import InvalidArgument
from .parsing import Parsed

# From here on, the nearest float is infinite.
_FLOAT_END = 2.0**128 - 2.0**103


def _integer(bits: int) -> Any:
    return Annotated[int, Meta(ge=-(1 << bits - 1), le=(1 << bits - 1) - 1)]


# The type to which msgspec decodes a value of a Spark type, and the Arrow type.
_SCALARS: dict[type[t.DataType], tuple[Any, pa.DataType]] = {
    t.BooleanType: (bool, pa.bool_()),
    t.ByteType: (_integer(8), pa.int8()),
    t.ShortType: (_integer(16), pa.int16()),
    t.IntegerType: (_integer(32), pa.int32()),
    t.LongType: (_integer(64), pa.int64()),
    t.FloatType: (Annotated[float, Meta(gt=-_FLOAT_END, lt=_FLOAT_END)], pa.float32()),
    t.DoubleType: (float, pa.float64()),
    t.StringType: (str, pa.string()),
    t.BinaryType: (bytes, pa.binary()),
    t.DateType: (date, pa.date32()),
    t.TimestampType: (Annotated[datetime, Meta(tz=True)], pa.timestamp("us", "UTC")),
    t.TimestampNTZType: (Annotated[datetime, Meta(tz=False)], pa.timestamp("us")),
}


# The errors for a value that does not fit.
MISFIT = (ValueError, ArithmeticError)


@dataclass(frozen=True)
class ColumnReader:
    """How the values of a field are read.

    Args:
        decoded: the type to which msgspec decodes them, if they are not null.
        arrow: the type of the column.
        make: makes the column from the decoded values; raises one of `MISFIT` if one does not fit.
    """

    decoded: Any
    arrow: pa.DataType
    make: Callable[[list[Any]], pa.Array]


def json_column(kind: t.DataType, path: str) -> ColumnReader:
    """Returns how JSON values are read as a Spark type.

    Raises:
        InvalidArgument: if this type, or one inside it, cannot be read from JSON.
    """
    decoded, arrow = _types(kind, path)
    return ColumnReader(decoded, arrow, partial(_array, kind=arrow, exact=_exactly(kind)))


class RowReader:
    """Reads the fields of JSON objects.

    Args:
        fields: the fields; those that are not nullable may not be null.
        column: returns how a field of a type and path is read.

    Raises:
        InvalidArgument: if a name occurs twice or cannot be used, or a type cannot be read.
    """

    def __init__(
        self, fields: t.StructType, column: Callable[[t.DataType, str], ColumnReader] = json_column
    ) -> None:
        _check_names(fields, "")
        self._fields = fields
        self._columns = [column(field.dataType, field.name) for field in fields]
        self._getters = [attrgetter(f"f{n}") for n in range(len(fields))]
        self.nothing = self._row(())()

    def decoder(self, required: Collection[str]) -> Callable[[Any], Any]:
        """Returns a function that decodes an object.

        Args:
            required: the fields that may not be missing; other missing fields are null.
        """
        return msgspec.json.Decoder(self._row(required)).decode

    def read(self, decode: Callable[..., Any], *inputs: Sequence[Any]) -> Parsed:
        """Reads objects.

        Args:
            decode: decodes one, or returns `nothing`.
            inputs: its arguments, for each of the objects.

        Returns:
            The columns of the fields, all null for a malformed object, and the reasons.
        """
        size = len(inputs[0])
        rows: list[Any] = []
        reasons: list[str | None] = [None] * size
        left = [iter(each) for each in inputs]
        while len(rows) < size:
            try:
                # No loop in Python. The rows decoded before a malformed one stay in the list.
                rows.extend(map(decode, *left))
            except (msgspec.DecodeError, RecursionError, TypeError) as error:
                reasons[len(rows)] = _reason(error)
                rows.append(self.nothing)
        try:
            columns = self._arrays(rows)
        except MISFIT:
            # Arrow does not say which value does not fit.
            for n, row in enumerate(rows):
                if reason := self._misfit(row):
                    rows[n], reasons[n] = self.nothing, reason
            columns = self._arrays(rows)
        return Parsed(columns, pa.array(reasons, pa.string()))

    def _row(self, required: Collection[str]) -> type[msgspec.Struct]:
        """Returns a class with the fields f0, f1, …, because some names are not valid in Python."""
        fields: list[Any] = []
        for n, (field, column) in enumerate(zip(self._fields, self._columns, strict=True)):
            decoded = column.decoded | None if field.nullable else column.decoded
            wanted = (f"f{n}", decoded)
            fields.append(wanted if field.name in required else (*wanted, None))
        names = {f"f{n}": name for n, name in enumerate(self._fields.names)}
        return msgspec.defstruct("Row", fields, rename=names, kw_only=True, gc=False)

    def _arrays(self, rows: list[Any]) -> list[pa.Array]:
        return [
            column.make(list(map(get, rows)))
            for column, get in zip(self._columns, self._getters, strict=True)
        ]

    def _misfit(self, row: Any) -> str | None:
        for field, column, get in zip(self._fields, self._columns, self._getters, strict=True):
            try:
                column.make([get(row)])
            except MISFIT:
                return f"Expected `{field.dataType.simpleString()}` - at `$.{field.name}`"
        return None


def _array(values: list[Any], kind: pa.DataType, exact: Callable[[Any], Any] | None) -> pa.Array:
    if exact is not None:
        values = [x if x is None else exact(x) for x in values]
    return pa.array(values, kind)


def _exactly(kind: t.DataType) -> Callable[[Any], Any] | None:
    """Returns a function that converts a decoded value for Arrow, or raises ArithmeticError.

    None if Arrow takes the values unchanged. Arrow crashes on decimals with a huge exponent.
    """
    if isinstance(kind, t.DecimalType):
        unit = Decimal(1).scaleb(-kind.scale)
        context = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
        return lambda value: value.quantize(unit, context=context)
    if isinstance(kind, t.TimestampType):
        # An offset can lead out of the years 1 to 9999.
        return lambda value: value.astimezone(UTC)
    if isinstance(kind, t.ArrayType) and (element := _exactly(kind.elementType)):
        return lambda values: [x if x is None else element(x) for x in values]
    if isinstance(kind, t.MapType) and (value := _exactly(kind.valueType)):
        return lambda values: {n: x if x is None else value(x) for n, x in values.items()}
    if isinstance(kind, t.StructType):
        members = {x.name: convert for x in kind if (convert := _exactly(x.dataType))}
        if members:
            return lambda values: {
                n: members[n](x) if n in members and x is not None else x for n, x in values.items()
            }
    return None


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "JSON has too many levels"
    return "the payload is null" if isinstance(error, TypeError) else str(error)


def _check_names(fields: t.StructType, path: str) -> None:
    for nr, name in enumerate(fields.names):
        if name in fields.names[:nr]:
            raise InvalidArgument(f"the schema has {path}{name} twice", "Leave one of them out.")
        if any(c in '"\\' or c < " " for c in name):
            raise InvalidArgument(
                f"the field {name!r} has a quote, backslash or control character in its name",
                "Leave it out of the schema, and read it from ev_data with Spark.",
            )


def _types(kind: t.DataType, path: str) -> tuple[Any, pa.DataType]:
    """Returns the type to which msgspec decodes a value, and the Arrow type."""
    if scalar := _SCALARS.get(type(kind)):
        return scalar
    if isinstance(kind, t.DecimalType):
        return Decimal, pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, t.StructType):
        _check_names(kind, f"{path}.")
        found = [(field, *_types(field.dataType, f"{path}.{field.name}")) for field in kind]
        members = {
            field.name: NotRequired[decoded | None] if field.nullable else decoded
            for field, decoded, _ in found
        }
        arrow = pa.struct([(field.name, arrow) for field, _, arrow in found])
        return TypedDict("Row", members), arrow  # type: ignore[operator]
    if isinstance(kind, t.ArrayType):
        decoded, arrow = _types(kind.elementType, f"{path}[]")
        element = decoded | None if kind.containsNull else decoded
        return list[element], pa.list_(pa.field("element", arrow))  # type: ignore[valid-type]
    if isinstance(kind, t.MapType) and type(kind.keyType) is t.StringType:
        decoded, arrow = _types(kind.valueType, f"{path}[]")
        value = decoded | None if kind.valueContainsNull else decoded
        return dict[str, value], pa.map_(pa.string(), arrow)  # type: ignore[valid-type]
    raise InvalidArgument(
        f"{path} is of type {kind.simpleString()}, and no value is read as one",
        "docs/payloads.md has the types; keep ev_data, and read this field from it with Spark.",
    )
