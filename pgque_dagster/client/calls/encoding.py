"""Encodes payloads and options for SQL."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InvalidArgument

Payload = str | Mapping[str, Any] | Sequence[Any]


def encode(payload: Payload) -> str:
    """Writes a payload as it is stored: text as it is, anything else as JSON.

    Raises:
        InvalidArgument: if the value is neither text nor what JSON can express.
    """
    if isinstance(payload, str):
        return payload
    try:
        return json.dumps(payload, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"the payload is no JSON value: {error}",
            "Send text, or lists and dicts of plain values.",
        ) from error
