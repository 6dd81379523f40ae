"""How columns and statistics of files look in a Delta table.

Readers skip files by statistics. If only some columns have a minimum and a maximum, the Arrow
dataset of Delta's library finds no rows for a condition on the others. So a column has both if JSON
can hold them, and no column has them if Arrow omits those of a text longer than 4 KiB.
"""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from pyspark.sql.types import StructType

from ...reading.arrow import nullable
from ..files.data_files import DELTA_TYPES, DataFile, check_columns

# Longer texts are cut.
_LONGEST_TEXT = 32
_LAST_CHARACTER = chr(0x10FFFF)


def delta_fields(schema: StructType) -> list[dict[str, Any]]:
    """Returns the columns of a DataFrame in Delta's JSON, all of them nullable.

    Raises:
        InvalidArgument: if Delta lacks such a type.
    """
    check_columns(schema, DELTA_TYPES, "Delta")
    fields: list[dict[str, Any]] = json.loads(nullable(schema).json())["fields"]
    return fields


def spark_columns(table: DeltaTable) -> StructType:
    """Returns the columns of a table as Spark's types."""
    return StructType.fromJson({"fields": stored_fields(table)})


def stored_fields(table: DeltaTable) -> list[dict[str, Any]]:
    """Returns the columns of a table in Delta's JSON."""
    fields: list[dict[str, Any]] = json.loads(table.schema().to_json())["fields"]
    return fields


def delta_schema(fields: Sequence[dict[str, Any]]) -> Schema:
    """Returns columns in the form that Delta's library takes."""
    return Schema.from_json(json.dumps({"type": "struct", "fields": list(fields)}))


def delta_statistics(file: DataFile) -> str:
    """Returns the statistics of a file as JSON for Delta: readers skip files by them."""
    columns = _column_statistics(file.metadata)
    bounds = {"minValues": _nested(columns, "min"), "maxValues": _nested(columns, "max")}
    if all(each["min"] is None for each in columns.values()):
        bounds = {}
    statistics = {"numRecords": file.rows, "nullCount": _nested(columns, "nulls"), **bounds}
    # Without escapes, because Delta's library misreads escapes of the last characters.
    return msgspec.json.encode(statistics).decode()


def _nested(columns: Mapping[tuple[str, ...], dict[str, Any]], what: str) -> dict[str, Any]:
    """One of the statistics. It has all structs; otherwise Delta's library would not find nulls."""
    found: dict[str, Any] = {}
    for path, statistics in columns.items():
        parent = found
        for part in path[:-1]:
            parent = parent.setdefault(part, {})
        value = statistics[what]
        if isinstance(value, Decimal):
            # Written with all digits: Delta's library does not read exponents.
            value = msgspec.Raw(f"{value:f}".encode())
        if value is not None:
            parent[path[-1]] = value
    return found


def _column_statistics(metadata: pq.FileMetaData) -> dict[tuple[str, ...], dict[str, Any]]:
    """Returns min, max and the number of nulls of each column, and of each part of a struct."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    lacks_text = False
    for place in range(metadata.num_columns):
        column = metadata.schema.column(place)
        if column.max_repetition_level:
            continue
        path = column.path.split(".")
        if len(path) != column.max_definition_level:  # Names of parts may have dots.
            path = column.path.split(".", 1)
        groups = [
            metadata.row_group(group).column(place) for group in range(metadata.num_row_groups)
        ]
        united = _united([group.statistics for group in groups])
        if column.logical_type.type == "STRING" and united["min"] is None:
            lacks_text = lacks_text or united["nulls"] != metadata.num_rows
        found[tuple(path)] = united
    if lacks_text:
        found = {path: {**each, "min": None, "max": None} for path, each in found.items()}
    return found


def _united(groups: list[Any]) -> dict[str, Any]:
    if any(group is None for group in groups):
        return {"min": None, "max": None, "nulls": None}
    nulls = sum(g.null_count for g in groups) if all(g.has_null_count for g in groups) else None
    bounds = [(group.min, group.max) for group in groups if group.has_min_max]
    known = bounds and all(group.has_min_max or not group.num_values for group in groups)
    low, high = (min(b[0] for b in bounds), max(b[1] for b in bounds)) if known else (None, None)
    if isinstance(low, str) and isinstance(high, str):
        # Not cut before a last character, because the text would be greater than the rest of it.
        is_cut = high[_LONGEST_TEXT : _LONGEST_TEXT + 1] not in ("", _LAST_CHARACTER)
        low, high = low[:_LONGEST_TEXT], high[:_LONGEST_TEXT] + _LAST_CHARACTER if is_cut else high
    shown = _shown_value(low), _shown_value(high)
    low, high = shown if None not in shown else (None, None)
    return {"min": low, "max": high, "nulls": nulls}


def _shown_value(value: Any) -> Any:
    """Returns a value for JSON; None for a value that is omitted."""
    if isinstance(value, bool | int | str | Decimal):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else "-Infinity" if value < 0 else "Infinity"
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return value.isoformat(timespec="microseconds")
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    if isinstance(value, date):
        return value.isoformat()
    return None
