"""Finds misspelt types in DDL before there is a Spark session, when a component is loaded."""

import difflib
import re
from collections.abc import Iterator

_TOKEN = re.compile(r"`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\w+|\S")
_CLOSE = ">)"
# All types that some version of Spark reads; whether this one does, Spark says.
_TYPES = frozenset(
    re.findall(
        r"\w+",
        "array, bigint, binary, boolean, byte, char, character, date, dec, decimal, double, "
        "float, geography, geometry, int, integer, interval, long, map, numeric, real, short, "
        "smallint, string, struct, time, timestamp, timestamp_ltz, timestamp_ntz, tinyint, "
        "varchar, variant, void",
    )
)


def check_ddl(ddl: str) -> None:
    """Refuses DDL without a field or with a type that no version of Spark has.

    What this does not understand is left to Spark, which parses the schema in the run.

    Raises:
        ValueError: if there is no field, or no such type.
    """
    tokens = _TOKEN.findall(ddl)
    if not tokens:
        raise ValueError("the payload schema has no field: name the fields to read")
    for name in _type_names(tokens):
        if name.lower() not in _TYPES:
            similar = difflib.get_close_matches(name.lower(), _TYPES, n=1)
            meant = f" (did you mean {similar[0]}?)" if similar else ""
            raise ValueError(
                f"{ddl!r} is no schema: Spark has no type {name}{meant}; write DDL such as "
                "'id bigint not null, total double'"
            )


def _type_names(tokens: list[str]) -> Iterator[str]:
    """Yields the names of the types. The stack holds what each bracket contains."""
    is_one_type = tokens[0].lower() in ("struct", "array", "map") and tokens[1:2] == ["<"]
    inside = ["types" if is_one_type else "fields"]
    expected = "type" if is_one_type else "name"
    before = ""
    for token in tokens:
        if token == "<":
            inside.append("fields" if before.lower() == "struct" else "types")
            expected = "name" if inside[-1] == "fields" else "type"
        elif token == "(":
            inside.append("digits")
        elif token in _CLOSE and len(inside) > 1:
            inside.pop()
            expected = "rest"
        elif token == "," and inside[-1] != "digits":
            expected = "name" if inside[-1] == "fields" else "type"
        elif inside[-1] == "digits" or token == ":":
            pass
        elif expected == "name":
            expected = "type"
        elif expected == "type":
            if token.isidentifier():
                yield token
            expected = "rest"
        before = token
