"""How columns and statistics of files look in a Delta table."""

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from pyspark.sql.types import StructType

from ....client import InvalidArgument
from ..files.data_files import UNBOUNDED, DataFile, check_columns
from ..files.statistics import column_statistics
from ..modes import SchemaEvolution
from ..tables import check_names

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
    for field in fields:
        name = field["name"]
        if name in there and _nullable(there[name]["type"]) != _nullable(field["type"]):
            raise InvalidArgument(
                f"column {name} of {table} is {_shown(there[name]['type'])}, and the "
                f"DataFrame's is {_shown(field['type'])}",
                f"Cast {name} in Spark, or store into another table.",
            )
    required = required_columns(stored)
    added = check_names(table, list(there), required, [f["name"] for f in fields], evolution)
    return [field for field in fields if field["name"] in added]


def required_columns(stored: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the names of the columns that must not be null."""
    return [field["name"] for field in stored if not field["nullable"]]


def delta_statistics(file: DataFile) -> str:
    """Returns the statistics of a file as JSON for Delta: readers skip files by them."""
    columns = column_statistics(file.metadata)
    bounds = {"minValues": _nested(columns, "min"), "maxValues": _nested(columns, "max")}
    if UNBOUNDED.items() <= file.metadata.metadata.items():
        bounds = {}  # Of all columns, as the others are not found without that of the text.
    mark = uuid.uuid4().hex

    def marked(value: Decimal) -> str:
        return f"{mark}{value:f}"

    written = json.dumps(
        {
            "numRecords": file.rows,
            "nullCount": _nested(columns, "nulls"),
            **bounds,
        },
        default=marked,
        # Delta's library reads escapes of the last characters as others.
        ensure_ascii=False,
    )
    # Numbers with all digits, which json does not write.
    return re.sub(rf'"{mark}([^"]+)"', r"\1", written)


def _nested(columns: Mapping[tuple[str, ...], dict[str, Any]], what: str) -> dict[str, Any]:
    """One of the statistics. It has all structs: in others, Delta's library would find no null."""
    found: dict[str, Any] = {}
    for path, statistics in columns.items():
        parent = found
        for part in path[:-1]:
            parent = parent.setdefault(part, {})
        if statistics[what] is not None:
            parent[path[-1]] = statistics[what]
    return found


def _nullable(kind: Any) -> Any:
    """A type or column without what says where nulls may be, and without metadata."""
    if isinstance(kind, list):
        return [_nullable(each) for each in kind]
    if not isinstance(kind, dict):
        return kind
    constants = {"nullable": True, "containsNull": True, "valueContainsNull": True, "metadata": {}}
    return {key: constants.get(key, _nullable(value)) for key, value in kind.items()}


def _shown(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])
