"""Statistics of the columns of a file, which its metadata has.

Readers skip files by them. If only some columns have a minimum and a maximum, the Arrow dataset of
Delta's library finds no rows by a condition on the others. So a column has both wherever JSON can
hold them, and no column has them if Arrow leaves out those of a text, of more than 4 KiB.
"""

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow.parquet as pq

# Longer texts are cut.
_LONGEST_TEXT = 32
_LAST_CHARACTER = chr(0x10FFFF)


def column_statistics(metadata: pq.FileMetaData) -> dict[tuple[str, ...], dict[str, Any]]:
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
        # Not cut before a last character, as the text would be more than what is left of it.
        is_cut = high[_LONGEST_TEXT : _LONGEST_TEXT + 1] not in ("", _LAST_CHARACTER)
        low, high = low[:_LONGEST_TEXT], high[:_LONGEST_TEXT] + _LAST_CHARACTER if is_cut else high
    shown = _shown_value(low), _shown_value(high)
    low, high = shown if None not in shown else (None, None)
    return {"min": low, "max": high, "nulls": nulls}


def _shown_value(value: Any) -> Any:
    """A value in JSON; None for what is left out."""
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
