"""Encodes payloads and options for SQL.

orjson writes JSON several times faster than the standard library, so it is used if installed. It
decides nothing: json checks what orjson refuses, and where it may have written null for NaN.
"""

import base64
import dataclasses
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any, Protocol
from uuid import UUID

from .errors import InvalidArgument

try:
    import orjson
except ImportError:
    orjson = None  # type: ignore[assignment]


class Model(Protocol):
    """A Pydantic model."""

    def model_dump(self, *, mode: str) -> Any:
        """Returns the model's fields as JSON values."""


class Dataclass(Protocol):
    """An instance of a dataclass."""

    __dataclass_fields__: Mapping[str, Any]


Payload = (
    str | bytes | bytearray | memoryview | Mapping[str, Any] | Sequence[Any] | Dataclass | Model
)
"""Text, bytes, or a value written as JSON: dicts, lists, dataclasses and Pydantic models."""

# A data URL (RFC 2397), which clients in any language can read.
BYTES_MARKER = "data:application/octet-stream;base64,"

# json cannot write a number with given digits, so it writes a string with a secret prefix, and the
# quotes around that are removed.
_DECIMAL = f"decimal-{secrets.token_hex(16)}:"
_QUOTED_DECIMAL = re.compile(f'"{_DECIMAL}([^"]*)"')


def encode(payload: Payload | object) -> str:
    """Returns a payload as it is stored: text unchanged, bytes as a data URL, the rest as JSON.

    Raises:
        InvalidArgument: if the value cannot be expressed as JSON.
    """
    if isinstance(payload, str):
        return payload
    if isinstance(payload, bytes | bytearray | memoryview):
        return BYTES_MARKER + base64.b64encode(bytes(payload)).decode()
    if orjson is not None:
        try:
            written = orjson.dumps(
                payload,
                _json_value,
                orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME,
            )
        except TypeError:
            written = b"null"
        if b"null" not in written:
            return _with_decimals(written.decode())
    try:
        return _with_decimals(
            json.dumps(
                payload,
                separators=(",", ":"),
                ensure_ascii=False,
                allow_nan=False,
                default=_json_value,
            )
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"the payload is not a JSON value: {error}",
            "Send text, bytes, a dataclass, a Pydantic model, or lists and dicts of texts, "
            "numbers, dates, times, UUIDs and enums. Convert other values to one of these.",
        ) from error


def decode_bytes(payload: str) -> bytes | None:
    """Returns the bytes of a payload that was sent as bytes; None if it was not."""
    if not payload.startswith(BYTES_MARKER):
        return None
    try:
        return base64.b64decode(payload[len(BYTES_MARKER) :], validate=True)
    except ValueError:
        return None


def _with_decimals(written: str) -> str:
    return written if _DECIMAL not in written else _QUOTED_DECIMAL.sub(r"\1", written)


def _json_value(value: Any) -> Any:
    """Returns a JSON value in place of a value that JSON cannot express.

    Raises:
        TypeError: if there is no such value.
    """
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Decimal) and value.is_finite():
        return f"{_DECIMAL}{value}"
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"an object of type {type(value).__name__} is not JSON serializable")
