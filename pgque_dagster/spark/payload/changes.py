"""The changes of a captured table as typed columns: docs/capture.md."""

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, Literal, get_args

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import types as t

from ...client.errors import InvalidArgument
from .parsing import OnMalformedEvent, Parsed, Schema, parse_events, parse_schema
from .reader import ColumnReader, RowReader, json_column

MissingColumns = Literal["malformed", "null"]

EVENT_COLUMNS = ("ev_id", "ev_type", "ev_data", "ev_extra1")
_BOOLEANS = {True: "t", False: "f"}
_NESTED = (t.StructType, t.ArrayType, t.MapType)
# An element of an array as PostgreSQL prints it, in quotes or plain.
_ELEMENT = re.compile(r'"((?:[^"\\]|\\.)*)"|([^,]+)', re.DOTALL)


class ChangeFormat:
    """Events with changes of a table.

    Args:
        fields: the table's columns to read.
        key: the columns that identify a row; None for a result without them.
        missing_columns: how to treat an insert or update that lacks a nullable column: as
            `malformed`, or as `null` in that column.

    Raises:
        InvalidArgument: if the key is empty, the schema lacks a column of the key or has a type
            that cannot be read, or `missing_columns` is unknown.
    """

    needed = EVENT_COLUMNS

    def __init__(
        self, fields: t.StructType, key: Sequence[str] | None, missing_columns: MissingColumns
    ) -> None:
        choices = get_args(MissingColumns)
        if missing_columns not in choices:
            raise InvalidArgument(
                f"missing_columns is {missing_columns!r}", f"It may be {', '.join(choices)}."
            )
        self._has_key = key is not None
        unknown = [name for name in key or () if name not in fields.names]
        if key is not None and (
            isinstance(key, str) or unknown or not key or len(set(key)) < len(key)
        ):
            raise InvalidArgument(
                f"the key is {key!r}, but the schema has {', '.join(fields.names)}",
                "List columns of the schema, each once: key=['id'].",
            )
        self._key = key = tuple(key or ())
        self._fields = t.StructType(
            [t.StructField(x.name, x.dataType, x.nullable and x.name not in key) for x in fields]
        )
        RowReader(self._fields, captured_column)
        self._required = [
            field.name
            for field in self._fields
            if not field.nullable or missing_columns == "malformed"
        ]
        row = t.StructType([t.StructField(x.name, x.dataType) for x in fields])
        keys = t.StructType([row[name] for name in key])
        self.result = t.StructType().add("operation", t.StringType()).add("table", t.StringType())
        if self._has_key:
            self.result.add("key", keys)
        self.result.add("row", row)

    def parser(self) -> Callable[[pa.RecordBatch], Parsed]:
        """Returns a function that parses events."""
        reader = RowReader(self._fields, captured_column)
        new = reader.decoder(self._required)
        decoders: dict[str, Callable[[Any], Any]] = {
            "insert": new,
            "update": new,
            # The key is enough.
            "delete": reader.decoder(self._key),
            "truncate": lambda _: reader.nothing,
        }

        def decode(operation: str, row: bytes) -> Any:
            if operation not in decoders:
                raise msgspec.ValidationError("ev_type is not a change of a table")
            return decoders[operation](row)

        def parse(events: pa.RecordBatch) -> Parsed:
            operations = events.column("ev_type")
            rows = events.column("ev_data").cast(pa.binary())
            read = reader.read(decode, operations.to_pylist(), rows.to_pylist())
            nothing = pc.or_kleene(read.reasons.is_valid(), pc.equal(operations, "truncate"))
            columns = dict(zip(self._fields.names, read.columns, strict=True))
            return Parsed(
                [
                    operations,
                    events.column("ev_extra1"),
                    *([_struct({x: columns[x] for x in self._key}, nothing)] * self._has_key),
                    _struct(columns, nothing),
                ],
                read.reasons,
            )

        return parse


def parse_changes(
    events: DataFrame,
    schema: Schema,
    *,
    key: Sequence[str],
    keep: Sequence[str] = (),
    missing_columns: MissingColumns = "malformed",
    on_malformed: OnMalformedEvent = "fail",
) -> DataFrame:
    """Returns the changes of a captured table from any DataFrame of events, including a stream.

    docs/capture.md says what is read and what is malformed, as for `SparkBatch.changes`. There is
    no ack that could set malformed events aside.

    Args:
        events: a DataFrame, streaming or not, with the columns ev_id, ev_type, ev_data and
            ev_extra1.
        schema: as for `SparkBatch.changes`.
        key: as for `SparkBatch.changes`.
        keep: columns of `events` to put before the others.
        missing_columns: as for `SparkBatch.changes`.
        on_malformed: under `fail`, reading a malformed event fails. `keep` returns such events
            without key and row, and adds the column ev_malformed: the reason, or null for an event
            that fits.

    Returns:
        A DataFrame of the `keep` columns, operation, table, key and row and, under `keep`,
        ev_malformed. A truncate has neither key nor row. Under `fail`, Spark raises an error whose
        cause is `MalformedPayload`: see `clear_executor_errors`.

    Raises:
        InvalidArgument: if the schema, the key or a column cannot be used, or the policy is
            unknown.
    """
    form = ChangeFormat(parse_schema(events.sparkSession, schema), key, missing_columns)
    return parse_events(events, form, keep=keep, on_malformed=on_malformed)


def captured_column(kind: t.DataType, path: str) -> ColumnReader:
    """Returns how captured values are read: integers, booleans and times; all else as text."""
    column = json_column(kind, path)
    if isinstance(kind, t.ArrayType) and not isinstance(kind.elementType, _NESTED):
        of_element = of_texts(kind.elementType, f"{path}[]")
        return ColumnReader(str, column.arrow, partial(_lists, kind=kind, of_element=of_element))
    if isinstance(kind, _NESTED):
        raise InvalidArgument(
            f"{path} is of type {kind.simpleString()}, which capture publishes as text",
            "Read it as string, and take what you need from that with Spark.",
        )
    if isinstance(kind, t.FloatType | t.DoubleType):
        return ColumnReader(float | str, column.arrow, partial(_floating, kind=column.arrow))
    if isinstance(kind, t.StringType):
        return ColumnReader(str | int | bool, column.arrow, _texts)
    if isinstance(kind, t.BinaryType):
        return ColumnReader(str, column.arrow, _bytes)
    return column


def _texts(values: list[Any]) -> pa.Array:
    """Makes a column from the texts that PostgreSQL prints."""
    try:
        return pa.array(values, pa.string())
    except TypeError:
        texts = [_BOOLEANS[x] if isinstance(x, bool) else x for x in values]
        return pa.array([x if x is None else str(x) for x in texts], pa.string())


def _floating(values: list[Any], kind: pa.DataType) -> pa.Array:
    texts = pa.array([x if x is None or isinstance(x, str) else repr(x) for x in values])
    column = texts.cast(pa.string()).cast(kind)
    is_finite = pc.invert(pc.match_substring(texts.cast(pa.string()), "Infinity"))
    if pc.any(pc.and_(pc.is_inf(column), is_finite)).as_py():
        raise ValueError("a number is out of range")
    return column


def _bytes(values: list[Any]) -> pa.Array:
    if any(x is not None and x[:2] != "\\x" for x in values):
        raise ValueError("a text has no bytes in hex")
    return pa.array([x if x is None else bytes.fromhex(x[2:]) for x in values], pa.binary())


def _lists(
    values: list[Any], kind: t.ArrayType, of_element: Callable[[list[Any]], pa.Array]
) -> pa.Array:
    """Makes lists from the texts of arrays with one dimension that begin at 1."""
    offsets = [0]
    texts: list[str | None] = []
    for value in values:
        texts += _elements(value) if value is not None else ()
        offsets.append(len(texts))
    if not kind.containsNull and None in texts:
        raise ValueError("an element is null")
    elements = of_element(texts)
    is_null = pa.array([x is None for x in values], pa.bool_())
    of_lists = pa.list_(pa.field("element", elements.type))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements, of_lists, mask=is_null)


def _elements(text: str) -> list[str | None]:
    if text[:1] != "{" or text[1:2] == "{":
        raise ValueError("no array of one dimension that begins at 1")
    if '"' not in text:
        return [None if x == "NULL" else x for x in text[1:-1].split(",") if x]
    return [
        re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
        if plain is None
        else (None if plain == "NULL" else plain)
        for quoted, plain in (found.groups() for found in _ELEMENT.finditer(text[1:-1]))
    ]


def of_texts(kind: t.DataType, path: str) -> Callable[[list[Any]], pa.Array]:
    """Returns a function that makes a column from texts that PostgreSQL prints."""
    column = captured_column(kind, path)
    if isinstance(kind, t.DecimalType | t.BooleanType):
        read = Decimal if isinstance(kind, t.DecimalType) else _truth
        return lambda texts: column.make([x if x is None else read(x) for x in texts])
    if isinstance(kind, t.StringType | t.BinaryType | t.FloatType | t.DoubleType | t.ArrayType):
        return column.make
    return lambda texts: pa.array(texts, pa.string()).cast(column.arrow)


def _truth(text: str) -> bool:
    if text not in _BOOLEANS.values():
        raise ValueError("a text is not a boolean")
    return text == "t"


def _struct(columns: dict[str, pa.Array], nothing: pa.Array) -> pa.StructArray:
    return pa.StructArray.from_arrays(
        list(columns.values()), names=list(columns), mask=nothing.fill_null(True)
    )
