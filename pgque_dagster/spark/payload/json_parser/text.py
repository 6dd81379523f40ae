"""Parses JSON exactly as RFC 8259 defines it; numbers stay texts.

The standard library's parser accepts more (NaN, half of a surrogate pair) and less (its depth is
limited by the recursion limit).
"""

import re
from collections.abc import Iterator
from typing import Any

_WHITESPACE = r"[ \t\n\r]*+"
_PLAIN = r'[^"\\\x00-\x1f]*+'
_ESCAPE = r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})'
_NUMBER = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?"
_TOKEN = re.compile(
    rf'(?:([{{}}\[\],:])|"({_PLAIN}(?:{_ESCAPE}{_PLAIN})*+)"|({_NUMBER})|(true|false|null))'
    + _WHITESPACE
)
_MARK, _STRING, _NUMERAL = 1, 2, 3
_START = re.compile("\ufeff?" + _WHITESPACE)
_NUMBER_ALONE = re.compile(_NUMBER)

_ESCAPED = re.compile(r"\\(?:u(....)|(.))")
_CHARACTERS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_WORDS = {"true": True, "false": False, "null": None}


class NotJson(ValueError):
    """A text is not JSON; the message is the reason."""


class Number(str):
    """A JSON number, as it was written."""

    __slots__ = ()


def parse_json(text: str) -> Any:
    """Parses one JSON document, however deep.

    Args:
        text: the document; a byte order mark before it is ignored.

    Returns:
        A dict, list, str, `Number`, bool or None. If a name is repeated, its last value counts.

    Raises:
        NotJson: if the text is not JSON, or contains half of a surrogate pair.
    """
    document: list[Any] = []  # Gets one value.
    current: Any = document
    parents: list[Any] = []
    name = ""
    surrogates = False
    # The tokens that may come next: v is a value, n is a name, and marks stand for themselves.
    awaited = "v"
    for kind, content in _tokens(text):
        if kind == _MARK and content in "]},:":
            if content not in awaited:
                raise NotJson("no JSON")
            if content in "]}":
                current = parents.pop()
                awaited = _after_value(current, document)
            else:
                awaited = "n" if content == "," and isinstance(current, dict) else "v"
            continue
        value = _value(kind, content)
        if kind == _STRING:
            surrogates = surrogates or (value is not content and not _is_unicode(value))
            if "n" in awaited:
                name, awaited = value, ":"
                continue
        if "v" not in awaited:
            raise NotJson("no JSON")
        if isinstance(current, dict):
            current[name] = value
        else:
            current.append(value)
        if kind == _MARK:
            parents.append(current)
            current, awaited = value, "n}" if content == "{" else "v]"
        else:
            awaited = _after_value(current, document)
    if awaited:
        raise NotJson("no JSON")
    if surrogates:
        raise NotJson("half of a surrogate pair stands alone")
    return document[0]


def is_number(text: str) -> bool:
    """Tells whether a text is a JSON number."""
    return _NUMBER_ALONE.fullmatch(text) is not None


def _tokens(text: str) -> Iterator[tuple[int, str]]:
    """Yields the kind and the content of each token."""
    start = _START.match(text)
    position = start.end() if start else 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None or token.lastindex is None:
            raise NotJson("no JSON")
        position = token.end()
        yield token.lastindex, token[token.lastindex]


def _value(kind: int, content: str) -> Any:
    """Returns the value of a token; a container is still empty."""
    if kind == _MARK:
        return {} if content == "{" else []
    if kind == _STRING:
        return _unescaped(content) if "\\" in content else content
    return Number(content) if kind == _NUMERAL else _WORDS[content]


def _after_value(current: Any, document: list[Any]) -> str:
    """Returns the tokens that may follow a value in a container; none after the document."""
    if current is document:
        return ""
    return ",}" if isinstance(current, dict) else ",]"


def _unescaped(content: str) -> str:
    def character(escape: re.Match[str]) -> str:
        code, short = escape.groups()
        return chr(int(code, 16)) if code else _CHARACTERS.get(short, short)

    # Encoding to UTF-16 joins the two halves of a pair into one character.
    text = _ESCAPED.sub(character, content)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)
