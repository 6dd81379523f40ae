"""Statistics of the columns of a file, which its metadata has.

Readers skip files by them. If only some columns have a minimum and a maximum, the Arrow dataset of
Delta's library finds no rows by a condition on the others, so a column has both wherever JSON can
hold them.
"""

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow.parquet as pq

from ...client import InvalidArgument
from .data_files import DataFile

# Longer texts are cut.
_LONGEST_TEXT = 32
_LAST_CHARACTER = chr(0x10FFFF)
# Arrow leaves out a minimum or maximum of more than 4 KiB. No text begins with so many of these
# characters, which stand for none.
_ANY_TEXT = ("", _LAST_CHARACTER * _LONGEST_TEXT)


def check_required(table: str, required: Sequence[str], files: Sequence[DataFile]) -> None:
    """Refuses nulls in columns that the table declares NOT NULL.

    Raises:
        InvalidArgument: naming the column.
    """
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
        united = _united([group.statistics for group in groups])
        is_text = metadata.schema.column(place).logical_type.type == "STRING"
        if is_text and united["min"] is None and united["nulls"] != metadata.num_rows:
            united["min"], united["max"] = _ANY_TEXT
        found[name] = united
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
    if isinstance(low, str) and isinstance(high, str):
        low, high = low[:_LONGEST_TEXT], _cut_above(high)
    shown = _shown_value(low), _shown_value(high)
    low, high = shown if None not in shown else (None, None)
    return {"min": low, "max": high, "nulls": nulls}


def _shown_value(value: Any) -> Any:
    """A value in JSON; None for what is left out."""
    if isinstance(value, bool | int | str | Decimal):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return value.isoformat(timespec="microseconds")
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    if isinstance(value, date):
        return value.isoformat()
    return None


def _cut_above(text: str) -> str:
    """A short text that is not less than this one."""
    end = _LONGEST_TEXT
    while text[end : end + 1] == _LAST_CHARACTER:
        end += 1
    return text[:end] + _LAST_CHARACTER if len(text) > end else text
