"""Copies Arrow record batches into a PostgreSQL table. It builds COPY's text column by column.

Each attempt at a task writes in its own transaction, and each row stores the transaction's id. So a
later reader can select the rows of the attempts whose results Spark accepted.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from ...client.errors import InvalidArgument, MalformedPayload, translated

# Characters that COPY's text format escapes. The backslash comes first, because others add some.
_ESCAPES = (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
_NULL = "\\N"
_TEXT = pa.large_string()
# The years 1 to 9999 in days since 1970: the range of Spark's dates and timestamps.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_DAY = 86_400_000_000


def copy_batches(
    connection: psycopg.Connection[tuple[Any, ...]],
    table: sql.Identifier,
    columns: Sequence[str],
    batches: Iterable[pa.RecordBatch],
) -> tuple[str, int]:
    """Writes record batches into a table in one transaction.

    Args:
        connection: a connection in autocommit mode.
        table: the table.
        columns: the table's columns, in the order of the batches' columns.
        batches: the record batches to write, with columns of simple types.

    Returns:
        The transaction's id, as `pg_current_xact_id()` prints it, and the number of rows.

    Raises:
        MalformedPayload: if a text contains a character that PostgreSQL cannot store.
        InvalidArgument: if a column has another type, or a date outside the years 1 to 9999.
    """
    copy = sql.SQL("copy {} ({}) from stdin (encoding 'UTF8')").format(
        table, sql.SQL(", ").join(map(sql.Identifier, columns))
    )
    rows = 0
    with translated(), connection.transaction(), connection.cursor() as cursor:
        cursor.execute("select pg_current_xact_id()::text")
        ((txid,),) = cursor.fetchall()
        with cursor.copy(copy) as stream:
            for batch in batches:
                for text in _copy_text(batch):
                    stream.write(text)
                rows += batch.num_rows
    return txid, rows


def _copy_text(batch: pa.RecordBatch) -> Iterator[memoryview]:
    """Yields the batch in COPY's text format, as the buffer of an Arrow column of strings."""
    if not batch.num_rows:
        return
    *first, last = (_field_texts(field, batch[field.name]) for field in batch.schema)
    end = pc.binary_join_element_wise(last, pa.scalar("", _TEXT), pa.scalar("\n", _TEXT))
    lines = pc.binary_join_element_wise(*first, end, pa.scalar("\t", _TEXT)) if first else end
    length = pc.sum(pc.binary_length(lines)).as_py()
    text = memoryview(lines.buffers()[2])[:length]
    if b"\0" in text.tobytes():
        raise _nul_error(batch)
    yield text


def _nul_error(batch: pa.RecordBatch) -> MalformedPayload:
    names = [
        field.name
        for field in batch.schema
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
        if pc.any(pc.match_substring(batch[field.name], "\0")).as_py()
    ]
    return MalformedPayload(
        f"column {' and '.join(names)} holds a text with the character U+0000",
        "PostgreSQL cannot store it: remove it, such as by regexp_replace(text, '\\\\x00', '').",
    )


def _field_texts(field: pa.Field, column: pa.Array) -> pa.Array:
    kind = field.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        texts = column.cast(_TEXT)
        for plain, escaped in _ESCAPES:
            texts = pc.replace_substring(texts, plain, escaped)
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        values = (None if v is None else f"\\\\x{v.hex()}" for v in column.to_pylist())
        texts = pa.array(values, _TEXT)
    elif pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        texts = _time_texts(field, column)
    elif pa.types.is_duration(kind):
        microseconds = column.cast(pa.duration("us")).cast(pa.int64()).cast(_TEXT)
        texts = pc.binary_join_element_wise(
            microseconds, pa.scalar("microseconds", _TEXT), pa.scalar(" ", _TEXT)
        )
    elif pa.types.is_float32(kind):
        # Converted to double, because a float's shortest text reads as another double.
        texts = column.cast(pa.float64()).cast(_TEXT)
    elif pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind):
        texts = column.cast(_TEXT)
    else:
        raise InvalidArgument(
            f"column {field.name} has the type {kind}, which cannot be written to a column",
            "Select its fields, or make it text with to_json.",
        )
    return pc.fill_null(texts, _NULL)


def _time_texts(field: pa.Field, column: pa.Array) -> pa.Array:
    if pa.types.is_date32(field.type):
        numbers, unit = column.cast(pa.int32()), 1
    else:
        column = column.cast(pa.timestamp("us", "UTC" if field.type.tz else None))
        numbers, unit = column.cast(pa.int64()), _DAY
    ends = pc.min_max(numbers)
    lowest, highest = ends["min"].as_py(), ends["max"].as_py()
    if lowest is not None and (lowest < _FIRST_DAY * unit or highest >= (_LAST_DAY + 1) * unit):
        raise InvalidArgument(
            f"column {field.name} holds a {'date' if unit == 1 else 'timestamp'} outside the years"
            " 1 to 9999",
            "Filter such rows out, or set them to null.",
        )
    return column.cast(_TEXT)
