"""Reports which value of a table its lake replica cannot hold, without showing the value."""

import json
import re
from typing import Any

import pyarrow as pa

from ...client.errors import MalformedPayload
from ...client.replicas.source import SourceTable

# Finds the column in a reason from msgspec.
_COLUMN = re.compile(r" - at `\$\.(.+)`$")
_NO_NUMBER = re.compile(r"-?infinity|nan", re.IGNORECASE)
_FAR_TIME = re.compile(r"\d{5,}-.*|.* BC")
_WAY_OUT = (
    "Change the row, and the next attempt applies it. Or store the column as text, by unstorable: "
    "{%s: text} beside source, or leave it out by exclude: then the table is copied again, at once "
    "if you run the repair job."
)


def misfit_error(
    events: pa.RecordBatch, reasons: pa.Array, source: SourceTable
) -> MalformedPayload:
    """Returns the error for the first event that does not fit its table's replica.

    Args:
        events: changes of the table, or rows of a copy, whose ev_id is 0.
        reasons: why an event does not fit; null if it does.
        source: the table.
    """
    place, why = next((n, why) for n, why in enumerate(reasons.to_pylist()) if why)
    event_id, row = events.column("ev_id")[place].as_py(), _row(events.column("ev_data")[place])
    key = ", ".join(f"{name} {row.get(name)}" for name in source.key)
    where = f"{f'the row of {source.name} with {key}' if key else f'a row of {source.name}'}"
    where += f" (event {event_id})" if event_id else ""
    found = _COLUMN.search(why)
    kinds = {column.name: column.data_type for column in source.columns}
    if found is None or found[1] not in row or found[1] not in kinds:
        return MalformedPayload(f"{where} does not fit the replica: {why}", _WAY_OUT % "column")
    name = found[1]
    return MalformedPayload(
        f"{where} has {_kind_of(row[name], kinds[name])} in column {name} of type {kinds[name]}, "
        "which the lake cannot hold",
        _WAY_OUT % name,
    )


def _row(text: pa.Scalar) -> dict[str, Any]:
    try:
        row = json.loads(text.as_py())
    except (ValueError, TypeError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _kind_of(value: Any, data_type: str) -> str:
    if isinstance(value, str):
        if data_type.endswith("[]"):
            return "an array with several dimensions or another first index than 1"
        if _NO_NUMBER.fullmatch(value):
            return value
        return "a time outside the years 1 to 9999" if _FAR_TIME.fullmatch(value) else "a text"
    return "a null" if value is None else f"a value of JSON's kind {type(value).__name__}"
