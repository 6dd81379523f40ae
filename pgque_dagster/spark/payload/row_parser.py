"""Parses changes of tables into typed rows, with a reason for each malformed one.

Arrow reads the values that it certainly reads as docs/triggers.md says. The others, whether unusual
or malformed, are read one by one.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from ...client.errors import InvalidArgument
from .parsing import Parsed
from .raw_json import NotJson, Number, members, value
from .readers import ScalarReader
from .types import check_name, printed_reader

# A column that is not in the row, and an object or array where a scalar value is expected.
MISSING = msgspec.UNSET
NESTED = object()

MissingColumns = Literal["malformed", "null"]

TRUNCATE, DELETE = "truncate", "delete"
_OPERATIONS = ("insert", "update", DELETE, TRUNCATE)

_Integer = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Value = str | _Integer | bool | msgspec.UnsetType | None


class _JsonHead(msgspec.Struct):
    op: Literal["INSERT", "UPDATE", "DELETE", "TRUNCATE"]
    table: list[str] = []
    pkey: list[str] = []


_decode_head = msgspec.json.Decoder(_JsonHead).decode


@dataclass(frozen=True)
class Head:
    """What ev_type says about a change.

    Args:
        operation: insert, update, delete or truncate.
        table: the table with its schema; None if ev_type does not name it.
        key: the columns that identify a row; empty if ev_type does not name them.
    """

    operation: str
    table: str | None
    key: tuple[str, ...]


@lru_cache(1024)
def parse_head(ev_type: str | None) -> Head | None:
    """Reads an event's type; returns None if it is of no change of a table."""
    if ev_type is None:
        return None
    if ev_type in _OPERATIONS:
        return Head(ev_type, None, ())
    try:
        head = _decode_head(ev_type)
    except msgspec.DecodeError:
        return None
    return Head(head.op.lower(), ".".join(head.table) or None, tuple(head.pkey))


class RowDecoder:
    """Decodes the wanted columns of rows.

    Args:
        names: the columns.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        columns = {f"c{n}": name for n, name in enumerate(names)}
        row = msgspec.defstruct(
            "Row", [(column, _Value, MISSING) for column in columns], rename=columns, gc=False
        )
        self._decode = msgspec.json.Decoder(row).decode

    def decode(self, text: str | None) -> Sequence[Any]:
        """Returns the columns' values, each as PostgreSQL prints it, or None for null.

        A column that the row lacks is `MISSING`, and an object or array is `NESTED`.

        Raises:
            NotJson: if the text is not a row.
        """
        try:
            row = self._decode(text or "")
            return [_printed(value) for value in msgspec.structs.astuple(row)]
        except (msgspec.DecodeError, RecursionError):
            pass
        found = members((text or "").encode())
        return [_printed(value(found[name])) if name in found else MISSING for name in self._names]


def _printed(value: Any) -> Any:
    """Returns a JSON value as PostgreSQL prints the value of the column."""
    kind = type(value)
    if kind is str or value is None or value is MISSING:
        return value
    if kind is bool:
        return "t" if value else "f"
    if kind is int:
        return str(value)
    if kind is Number:
        # Only integers are published as JSON numbers, and they have no negative zero.
        return "0" if value == "-0" else str(value)
    return NESTED


class ChangeParser:
    """Reads changes of a table as docs/triggers.md says.

    Args:
        fields: the table's columns to read.
        key: the columns that identify a row.
        missing_columns: how to treat an insert or update that lacks a nullable column.

    Raises:
        InvalidArgument: if a name occurs twice, or no value is read as one of the types.
    """

    def __init__(
        self, fields: StructType, key: Sequence[str], missing_columns: MissingColumns
    ) -> None:
        self._readers: dict[str, ScalarReader] = {}
        for field in fields:
            if field.name in self._readers:
                raise InvalidArgument(
                    f"the schema has {field.name} twice", "Leave one of them out."
                )
            check_name(field.name)
            nullable = field.nullable and field.name not in key
            self._readers[field.name] = printed_reader(field.dataType, nullable, field.name)
        self._key = list(key)
        self._missing_is_null = missing_columns == "null"
        self._decoder = RowDecoder(list(self._readers))

    def parse(self, types: pa.Array, rows: pa.Array, tables: pa.Array) -> Parsed:
        """Reads events into the columns operation, table, key and row.

        Args:
            types: their ev_type.
            rows: their ev_data.
            tables: their ev_extra1.
        """
        heads = [parse_head(text) for text in types.to_pylist()]
        problems: list[list[str]] = [[] for _ in heads]
        decoded, places = [], []
        for n, (head, text) in enumerate(zip(heads, rows.to_pylist(), strict=True)):
            if head is None:
                problems[n].append("ev_type is no change of a table")
            elif head.operation != TRUNCATE:
                try:
                    decoded.append(self._decoder.decode(text))
                except NotJson as why:
                    problems[n].append(str(why))
                    continue
                places.append(n)
                problems[n] += self._key_problem(head)
        columns = {
            name: self._column(
                name, [row[nr] for row in decoded], [(heads[n], problems[n]) for n in places]
            )
            for nr, name in enumerate(self._readers)
        }
        where = np.full(len(heads), -1)
        where[places] = np.arange(len(places))
        indices = pa.array(where, mask=where < 0)
        operations = [head and head.operation for head in heads]
        names = [
            table if table is not None else head and head.table
            for head, table in zip(heads, tables.to_pylist(), strict=True)
        ]
        return Parsed(
            [
                pa.array(operations, pa.string()),
                pa.array(names, pa.string()),
                _struct({name: columns[name] for name in self._key}).take(indices),
                _struct(columns).take(indices),
            ],
            pa.array([", ".join(some) or None for some in problems], pa.string()),
        )

    def _key_problem(self, head: Head) -> list[str]:
        # A table without a primary key publishes only inserts, and their events name no key.
        if not head.key or sorted(head.key) == sorted(self._key):
            return []
        has_comma = any("," in name for name in head.key)
        key = json.dumps(head.key, ensure_ascii=False) if has_comma else ",".join(head.key)
        return [f"the event's key is {key}"]

    def _column(
        self, name: str, values: list[Any], events: list[tuple[Head | None, list[str]]]
    ) -> pa.Array:
        """Makes a column, and records the problems of its values."""
        reader = self._readers[name]
        texts = [value if type(value) is str else None for value in values]
        column, doubts = reader.column(texts)
        unread = [n for n, text in enumerate(texts) if text is None]
        unsure = [] if doubts is None else np.flatnonzero(doubts).tolist()
        exact = []
        for n in unsure:
            found: dict[str, None] = {}
            exact.append(reader.fitted(texts[n], name, found))
            events[n][1].extend(found)
        for n in unread:
            head, problems = events[n]
            problems += self._unread(name, reader, values[n], head)
        if not unsure:
            return column
        order = np.arange(len(values))
        order[unsure] = np.arange(len(values), len(values) + len(unsure))
        return pa.concat_arrays([column, pa.array(exact, column.type)]).take(pa.array(order))

    def _unread(self, name: str, reader: ScalarReader, value: Any, head: Head | None) -> list[str]:
        """Returns the problems of a value that is not a text."""
        if value is None:
            return [] if reader.nullable else [f"{name} is null"]
        if value is not MISSING:
            return [f"{name} is no {reader.name}"]
        if name in self._key:
            return [f"{name} is missing"]
        is_allowed = reader.nullable and self._missing_is_null
        is_delete = head is not None and head.operation == DELETE
        return [] if is_delete or is_allowed else [f"{name} is missing"]


def _struct(columns: dict[str, pa.Array]) -> pa.StructArray:
    return pa.StructArray.from_arrays(list(columns.values()), names=list(columns))
