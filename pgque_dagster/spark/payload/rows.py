"""Decodes ev_type and ev_data of the events of captured tables and of jsontriga."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

import msgspec

from .raw_json import NotJson, Number, members, value

# A column that is not in the row.
MISSING = msgspec.UNSET

TRUNCATE, DELETE = "truncate", "delete"
_OPERATIONS = ("insert", "update", DELETE, TRUNCATE)

_Integer = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Value = str | _Integer | bool | msgspec.UnsetType | None


class _JsonHead(msgspec.Struct):
    op: Literal["INSERT", "UPDATE", "DELETE", "TRUNCATE"]
    table: list[str] = []
    pkey: list[str] = []


_decode_head = msgspec.json.Decoder(_JsonHead).decode


class NotARow(ValueError):
    """A text is not a row of a table; the message is the reason."""


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


class Nested:
    """An object or array where a scalar value is expected."""


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
        self._decode_json: Callable[[str], Any] | None = None
        # msgspec does not accept other names.
        if not any(c in '"\\' or c < " " for name in names for c in name):
            columns = {f"c{n}": name for n, name in enumerate(names)}
            row = msgspec.defstruct(
                "Row", [(column, _Value, MISSING) for column in columns], rename=columns, gc=False
            )
            self._decode_json = msgspec.json.Decoder(row).decode

    def decode(self, text: str | None) -> Sequence[Any]:
        """Returns the columns' values, each as PostgreSQL prints it, or None for null.

        A column that the row lacks is `MISSING`, and an object or array is a `Nested`.

        Raises:
            NotARow: if the text is not a row.
        """
        if self._decode_json is not None:
            try:
                row = self._decode_json(text)  # type: ignore[arg-type]
                return [_printed(value) for value in msgspec.structs.astuple(row)]
            except (msgspec.DecodeError, RecursionError, TypeError):
                pass
        try:
            found = members((text or "").encode())
        except NotJson as error:
            raise NotARow(str(error)) from error
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
    return Nested()
