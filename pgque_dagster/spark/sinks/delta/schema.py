"""How columns and statistics of files look in a Delta table."""

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec
from deltalake import DeltaTable, Schema
from pyspark.sql.types import StructType

from ...reading.arrow import nullable
from ..files.data_files import HELD_BY_DELTA, DataFile, check_columns
from ..files.statistics import column_statistics


def delta_fields(schema: StructType) -> list[dict[str, Any]]:
    """Returns the columns of a DataFrame as Delta's JSON has them, all of them nullable.

    Raises:
        InvalidArgument: if Delta has no such type.
    """
    check_columns(schema, HELD_BY_DELTA, "Delta")
    fields: list[dict[str, Any]] = json.loads(nullable(schema).json())["fields"]
    return fields


def stored_fields(table: DeltaTable) -> list[dict[str, Any]]:
    """Returns the columns of a table as Delta's JSON has them."""
    fields: list[dict[str, Any]] = json.loads(table.schema().to_json())["fields"]
    return fields


def delta_schema(fields: Sequence[dict[str, Any]]) -> Schema:
    """Returns columns as Delta's library takes them."""
    return Schema.from_json(json.dumps({"type": "struct", "fields": list(fields)}))


def delta_statistics(file: DataFile) -> str:
    """Returns the statistics of a file as JSON for Delta: readers skip files by them."""
    columns = column_statistics(file.metadata)
    bounds = {"minValues": _nested(columns, "min"), "maxValues": _nested(columns, "max")}
    if all(each["min"] is None for each in columns.values()):
        bounds = {}
    statistics = {"numRecords": file.rows, "nullCount": _nested(columns, "nulls"), **bounds}
    # Without escapes, because Delta's library reads those of the last characters as others.
    return msgspec.json.encode(statistics).decode()


def _nested(columns: Mapping[tuple[str, ...], dict[str, Any]], what: str) -> dict[str, Any]:
    """One of the statistics. It has all structs: in others, Delta's library would find no null."""
    found: dict[str, Any] = {}
    for path, statistics in columns.items():
        parent = found
        for part in path[:-1]:
            parent = parent.setdefault(part, {})
        value = statistics[what]
        if isinstance(value, Decimal):
            # With all digits: Delta's library does not read exponents.
            value = msgspec.Raw(f"{value:f}".encode())
        if value is not None:
            parent[path[-1]] = value
    return found
