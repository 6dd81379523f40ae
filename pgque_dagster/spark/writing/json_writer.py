"""Writes columns as JSON payloads that `payload(schema)` reads back to equal values.

docs/payloads.md has the types. Arrow writes the texts column by column.
"""

import base64
import json
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from ...client.errors import InvalidArgument
from ..payload.types import struct_reader

_TEXT = pa.large_string()
_CONTROL_CHARACTERS = "[\\x00-\\x1f]"
# Days since 1970 of the first day of the year 1 and of the year 10000.
_FIRST_DAY, _DAYS_END = -719_162, 2_932_897
_DAY_MICROSECONDS = 86_400_000_000


def check_types(fields: StructType) -> None:
    """Checks that each column has a type that `payload(schema)` reads.

    Raises:
        InvalidArgument: if a name occurs twice, or a column has another type.
    """
    try:
        struct_reader(fields)
    except InvalidArgument as error:
        raise InvalidArgument(
            f"payload=json cannot write these columns: {error.args[0]}",
            "Cast the column to a type of docs/payloads.md, rename it or drop it; or build the "
            "payload in Spark and name it data.",
        ) from error


def write_objects(batch: pa.RecordBatch) -> pa.Array:
    """Writes each row as a JSON object without the fields that are null.

    Args:
        batch: columns that passed `check_types`.

    Raises:
        InvalidArgument: if a value is NaN or infinite, or a date or time is outside the years 1 to
            9999. The error names the column.
    """
    names = batch.schema.names
    return _object(names, batch.columns, batch.num_rows, "")


def _object(names: list[str], columns: list[pa.Array], rows: int, path: str) -> pa.Array:
    members = []
    for name, column in zip(names, columns, strict=True):
        texts = _texts(column, f"{path}.{name}" if path else name)
        members.append(pc.fill_null(_joined(f",{_quoted(name)}:", texts), ""))
    if not members:
        return pa.array(["{}"] * rows, _TEXT)
    # Each member begins with a comma.
    return _joined("{", pc.replace_substring_regex(_joined(*members), "^,", ""), "}")


def _texts(column: pa.Array, path: str) -> pa.Array:
    """Returns the JSON text of each value; null for null."""
    kind = column.type
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        return _or_null(column, _object(names, column.flatten(), len(column), path))
    if pa.types.is_map(kind):
        members = _joined(_strings(column.keys), ":", _values(column.items, f"{path}[]"))
        return _or_null(column, _joined("{", _lists(column, members), "}"))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        elements = _values(column.values, f"{path}[]")
        return _or_null(column, _joined("[", _lists(column, elements), "]"))
    for is_kind, write in _SCALARS:
        if is_kind(kind):
            return write(column, path)
    return column.cast(_TEXT)


def _values(column: pa.Array, path: str) -> pa.Array:
    """Returns the JSON text of each value of an array or map; the text `null` for null."""
    return pc.fill_null(_texts(column, path), "null")


def _lists(column: pa.Array, texts: pa.Array) -> pa.Array:
    """Joins the texts of the elements of each array or map with commas."""
    offsets = pa.array(column.offsets.to_numpy(), pa.int64())
    return pc.binary_join(pa.LargeListArray.from_arrays(offsets, texts), pa.scalar(",", _TEXT))


def _strings(column: pa.Array, path: str = "") -> pa.Array:
    texts = pc.replace_substring(column.cast(_TEXT), "\\", "\\\\")
    texts = pc.replace_substring(texts, '"', '\\"')
    if pc.any(pc.match_substring_regex(texts, _CONTROL_CHARACTERS)).as_py():
        for code in range(0x20):
            escaped = json.dumps(chr(code)).strip('"')
            texts = pc.replace_substring(texts, chr(code), escaped)
    return _joined('"', texts, '"')


def _floats(column: pa.Array, path: str) -> pa.Array:
    if pc.any(pc.invert(pc.is_finite(column))).as_py():
        raise InvalidArgument(
            f"column {path} holds NaN or an infinity, which JSON cannot express",
            "Make it null, such as by nullif or nanvl; or cast the column to string.",
        )
    # The shortest text of this float or double. Without a point, -0.0 would lose its sign.
    return pc.replace_substring_regex(column.cast(_TEXT), "^(-?[0-9]+)$", "\\1.0")


def _decimals(column: pa.Array, path: str) -> pa.Array:
    if column.type.scale <= 6:
        return _joined('"', column.cast(_TEXT), '"')
    # Arrow writes small values of such a scale with an exponent.
    plain = [None if x is None else f"{x:f}" for x in column.to_pylist()]
    return _joined('"', pa.array(plain, _TEXT), '"')


def _binary(column: pa.Array, path: str) -> pa.Array:
    encoded = [None if x is None else base64.b64encode(x).decode() for x in column.to_pylist()]
    return _joined('"', pa.array(encoded, _TEXT), '"')


def _dates(column: pa.Array, path: str) -> pa.Array:
    _check_years(column.cast(pa.int32()), 1, path)
    return _joined('"', column.cast(_TEXT), '"')


def _timestamps(column: pa.Array, path: str) -> pa.Array:
    """Writes instants in UTC, whatever the session's time zone is."""
    microseconds = column.cast(pa.int64())
    _check_years(microseconds, _DAY_MICROSECONDS, path)
    texts = pc.replace_substring(microseconds.cast(pa.timestamp("us")).cast(_TEXT), " ", "T")
    texts = pc.replace_substring_regex(texts, "\\.000000$", "")
    return _joined('"', texts, '"' if column.type.tz is None else 'Z"')


def _check_years(column: pa.Array, day: int, path: str) -> None:
    """Refuses values outside the years of ISO 8601. `day` is the length of a day in their unit."""
    first, last = pc.min_max(column).values()
    if first.is_valid and not _FIRST_DAY * day <= first.as_py() <= last.as_py() < _DAYS_END * day:
        raise InvalidArgument(
            f"column {path} holds a date before the year 1 or after 9999",
            "ISO 8601 has no such dates: filter them out, make them null, or cast the column to "
            "string.",
        )


def _or_null(column: pa.Array, texts: pa.Array) -> pa.Array:
    return pc.if_else(column.is_valid(), texts, None)


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _joined(*parts: pa.Array | str) -> pa.Array:
    """Joins texts; null if one of them is null."""
    texts = [pa.scalar(part, _TEXT) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*texts, pa.scalar("", _TEXT))


_SCALARS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array, str], pa.Array]], ...] = (
    (pa.types.is_string, _strings),
    (pa.types.is_large_string, _strings),
    (pa.types.is_floating, _floats),
    (pa.types.is_decimal, _decimals),
    (pa.types.is_binary, _binary),
    (pa.types.is_large_binary, _binary),
    (pa.types.is_date, _dates),
    (pa.types.is_timestamp, _timestamps),
)
