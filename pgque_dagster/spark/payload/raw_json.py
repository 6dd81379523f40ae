"""JSON values by msgspec: what it refuses is no JSON."""

import re
from typing import Any

import msgspec

# More levels could end in a RecursionError, depending on the caller's stack.
MAX_DEPTH = 500

_BYTE_ORDER_MARK = "\ufeff".encode()
_TEXTS = re.compile(rb'"(?:[^"\\]|\\.)*+"?')
_BRACKETS = re.compile(rb"[\[{]|[\]}]")
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode
_text = msgspec.json.Decoder(str).decode
_WORDS = {b"t": True, b"f": False, b"n": None}


class NotJson(ValueError):
    """A text is not JSON; the message is the reason."""


class Number(str):
    """A JSON number, as it was written."""

    __slots__ = ()


def members(text: bytes) -> dict[str, msgspec.Raw]:
    """Reads a JSON document that is an object, with or without a byte order mark.

    Returns:
        The values by name. If a name is repeated, its last value counts.

    Raises:
        NotJson: if the text is not JSON, is no object, or has more than `MAX_DEPTH` levels.
    """
    text = text.removeprefix(_BYTE_ORDER_MARK)
    if is_too_deep(text):
        raise NotJson("no JSON")
    try:
        return _members(text)
    except msgspec.ValidationError:
        try:
            msgspec.json.decode(text, type=msgspec.Raw)
        except msgspec.DecodeError as error:
            raise NotJson("no JSON") from error
        raise NotJson("JSON, but no object") from None
    except msgspec.DecodeError as error:
        raise NotJson("no JSON") from error


def value(raw: msgspec.Raw) -> Any:
    """Reads a value of a document.

    Returns:
        A dict or list of raw values, a str, `Number`, bool or None.
    """
    text = bytes(raw)
    first = text[:1]
    if first == b'"':
        return _text(text)
    if first in _WORDS:
        return _WORDS[first]
    if first == b"{":
        return _members(text)
    return _elements(text) if first == b"[" else Number(text.decode())


def is_too_deep(text: bytes) -> bool:
    """Whether a document has more than `MAX_DEPTH` levels of objects and arrays."""
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return False
    depth = 0
    for bracket in _BRACKETS.finditer(_TEXTS.sub(b"", text)):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > MAX_DEPTH:
            return True
    return False
