"""How columns and statistics of files look in a Delta table."""

import json
import math
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from ...client import InvalidArgument
from .data_files import DataFile, check_columns
from .tables import SchemaEvolution

# The simple types of Spark that are types of Delta; the JSON of both names them equally.
_HELD = frozenset(
    (
        "byte",
        "short",
        "integer",
        "long",
        "float",
        "double",
        "decimal",
        "string",
        "char",
        "varchar",
        "binary",
        "boolean",
        "date",
        "timestamp",
        "timestamp_ntz",
    )
)
# Longer texts are left out of the statistics.
_LONGEST_TEXT = 32


def delta_fields(schema: StructType) -> list[dict[str, Any]]:
    """Returns the columns of a DataFrame as Delta's JSON has them, all of them nullable.

    Raises:
        InvalidArgument: if Delta has no such type.
    """
    check_columns(schema, _HELD, "Delta")
    fields: list[dict[str, Any]] = _nullable(json.loads(schema.json()))["fields"]
    return fields


def added_fields(
    table: str,
    stored: Sequence[dict[str, Any]],
    fields: Sequence[dict[str, Any]],
    evolution: SchemaEvolution,
) -> list[dict[str, Any]]:
    """Compares the columns of a DataFrame with those of the table.

    Args:
        table: the table's name for errors.
        stored: the columns of the table.
        fields: the columns of the DataFrame.
        evolution: whether the table may get columns.

    Returns:
        The columns to add to the table.

    Raises:
        InvalidArgument: if the rows do not fit the table.
    """
    there = {field["name"]: field for field in stored}
    given = {field["name"]: field for field in fields}
    lower = {name.lower(): name for name in there}
    for name, field in given.items():
        if name in there:
            if _nullable(there[name]["type"]) != _nullable(field["type"]):
                raise InvalidArgument(
                    f"column {name} of {table} is {_shown(there[name]['type'])}, and the "
                    f"DataFrame's is {_shown(field['type'])}",
                    f"Cast {name} in Spark, or store into another table.",
                )
        elif name.lower() in lower:
            raise InvalidArgument(
                f"{table} has the column {lower[name.lower()]}, and the DataFrame has {name}",
                f"Rename it: withColumnRenamed('{name}', '{lower[name.lower()]}').",
            )
    added = [field for name, field in given.items() if name not in there]
    missing = [name for name in there if name not in given]
    required = [name for name in missing if not there[name]["nullable"]]
    if evolution == "add_columns" and not required:
        return added
    if added and evolution == "fail":
        raise InvalidArgument(
            f"{table} has no column {_names(added)}",
            "Leave it out, or let the sink add columns: schema_evolution='add_columns'.",
        )
    if missing:
        raise InvalidArgument(
            f"the DataFrame has no column {', '.join(required or missing)}, which {table} has",
            "Add it to the DataFrame; as null, it needs a cast to its type."
            if required
            else "Add it to the DataFrame, or allow nulls: schema_evolution='add_columns'.",
        )
    return added


def check_required(table: str, stored: Sequence[dict[str, Any]], files: Sequence[DataFile]) -> None:
    """Refuses nulls in columns that the table declares NOT NULL.

    Raises:
        InvalidArgument: naming the column.
    """
    required = [field["name"] for field in stored if not field["nullable"]]
    for file in files if required else ():
        statistics = column_statistics(file.metadata)
        for name in required:
            nulls = statistics.get(name, {}).get("nulls")
            if nulls != 0:
                raise InvalidArgument(
                    f"column {name} of {table} is NOT NULL, and the DataFrame "
                    f"{'has nulls in it' if nulls else 'may have nulls in it'}",
                    "Filter such rows out, or drop the constraint.",
                )


def delta_statistics(file: DataFile) -> str:
    """Returns the statistics of a file as JSON for Delta: readers skip files by them."""
    columns = column_statistics(file.metadata)
    return json.dumps(
        {
            "numRecords": file.rows,
            "minValues": {n: c["min"] for n, c in columns.items() if c["min"] is not None},
            "maxValues": {n: c["max"] for n, c in columns.items() if c["max"] is not None},
            "nullCount": {n: c["nulls"] for n, c in columns.items() if c["nulls"] is not None},
        }
    )


def column_statistics(metadata: pq.FileMetaData) -> dict[str, dict[str, Any]]:
    """Returns min, max and the number of nulls of each column that is not nested."""
    found: dict[str, dict[str, Any]] = {}
    for place in range(metadata.num_columns):
        name = metadata.schema.column(place).path
        if "." in name or metadata.schema.column(place).max_repetition_level:
            continue
        groups = [
            metadata.row_group(group).column(place) for group in range(metadata.num_row_groups)
        ]
        found[name] = _united([group.statistics for group in groups])
    return found


def _united(groups: list[Any]) -> dict[str, Any]:
    nulls: int | None = 0
    lows, highs = [], []
    known = True
    for group in groups:
        if group is None or not group.has_null_count:
            nulls = None
        elif nulls is not None:
            nulls += group.null_count
        if group is not None and group.has_min_max:
            lows.append(group.min)
            highs.append(group.max)
        elif group is None or group.num_values:
            known = False
    low, high = (min(lows), max(highs)) if known and lows else (None, None)
    shown = _shown_value(low), _shown_value(high)
    low, high = shown if None not in shown else (None, None)
    return {"min": low, "max": high, "nulls": nulls}


def _shown_value(value: Any) -> Any:
    """A value as Delta's statistics have it; None for what they leave out."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return value.isoformat(timespec="microseconds")
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str) and len(value) <= _LONGEST_TEXT:
        return value
    return None


def _nullable(kind: Any) -> Any:
    """A type or column without what says where nulls may be, and without metadata."""
    if isinstance(kind, list):
        return [_nullable(each) for each in kind]
    if not isinstance(kind, dict):
        return kind
    constants = {"nullable": True, "containsNull": True, "valueContainsNull": True, "metadata": {}}
    return {key: constants.get(key, _nullable(value)) for key, value in kind.items()}


def _names(fields: Sequence[dict[str, Any]]) -> str:
    return ", ".join(field["name"] for field in fields)


def _shown(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])
