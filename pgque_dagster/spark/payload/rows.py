"""Decodes ev_type and ev_data of the events of captured tables, jsontriga and logutriga."""

import re
from binascii import a2b_qp
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

import msgspec

from .raw_json import NotJson, Number, members, value

# A column that is not in the row.
MISSING = msgspec.UNSET

TRUNCATE, DELETE = "truncate", "delete"
LETTERS = {"I": "insert", "U": "update", "D": DELETE, "R": TRUNCATE}
_WORDS = {word.upper(): word for word in LETTERS.values()}

# Characters that a url-encoded row never contains.
_FOREIGN = re.compile("[^A-Za-z0-9_.+%=&-]|%(?![0-9a-fA-F]{2})")

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
        key: the columns that identify a row. logutriga separates them by commas, so a column with
            a comma in its name is split into several: see `column_across`.
        is_json: whether the row is JSON.
    """

    operation: str
    table: str | None
    key: tuple[str, ...]
    is_json: bool


class Nested:
    """An object or array where a scalar value is expected."""


@lru_cache(1024)
def parse_head(ev_type: str | None) -> Head | None:
    """Reads an event's type; returns None if it is of no change of a table."""
    if ev_type is None:
        return None
    if ev_type in LETTERS.values():
        return Head(ev_type, None, (), is_json=True)
    if ev_type.startswith("{"):
        return _json_head(ev_type)
    letter, colon, key = ev_type.partition(":")
    operation = LETTERS.get(letter)
    if operation is None or (operation == TRUNCATE) == bool(colon):
        return None
    return Head(operation, None, tuple(key.split(",")) if key else (), is_json=False)


def column_across(key: Sequence[str], text: str) -> str | None:
    """Returns a column whose name consists of several names in a key, joined by commas.

    Args:
        key: names that were split at commas.
        text: the row of logutriga, which `RowDecoder` has decoded.
    """
    if len(key) < 2 or "%2c" not in text.lower():
        return None
    joined = f",{','.join(key)},"
    names = (_unquoted(pair.partition("=")[0]) for pair in text.split("&"))
    return next((name for name in names if "," in name and f",{name}," in joined), None)


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

    def decode(self, text: str | None, *, is_json: bool) -> Sequence[Any]:
        """Returns the columns' values, each as PostgreSQL prints it, or None for null.

        A column that the row lacks is `MISSING`, and an object or array is a `Nested`.

        Raises:
            NotARow: if the text is not a row.
        """
        if not is_json:
            return self._from_url(text)
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

    def _from_url(self, text: str | None) -> Sequence[Any]:
        if text is None or _FOREIGN.search(text):
            raise NotARow("no url-encoded row")
        found: dict[str, str | None] = {}
        pairs = text.split("&") if text else []
        try:
            for pair in pairs:
                name, is_value, value = pair.partition("=")
                if not name or "=" in value:
                    raise NotARow("no url-encoded row")
                found[_unquoted(name)] = _unquoted(value) if is_value else None
        except UnicodeDecodeError as error:
            raise NotARow("no url-encoded row") from error
        if len(found) < len(pairs):
            raise NotARow("a column is there twice")
        return [found.get(name, MISSING) for name in self._names]


def _json_head(ev_type: str) -> Head | None:
    try:
        head = _decode_head(ev_type)
    except msgspec.DecodeError:
        return None
    return Head(_WORDS[head.op], ".".join(head.table) or None, tuple(head.pkey), is_json=True)


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


def _unquoted(text: str) -> str:
    if "%" not in text and "+" not in text:
        return text
    # With = for %, the text is quoted-printable. Decoding that takes less memory than urllib takes.
    return a2b_qp(text.replace("+", " ").replace("%", "=")).decode()
