"""One statement for the client to run: its text, its parameters, and how to read its rows.

Nothing here does input or output, so that a synchronous and an asynchronous client can share it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, LiteralString, TypeVar

T = TypeVar("T")
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Call(Generic[T]):
    """One statement: its text, its parameters, and how to parse its rows."""

    sql: LiteralString
    params: tuple[object, ...]
    parse: Callable[[list[Row]], T]


def first(rows: list[Row]) -> Any:
    """Returns the single value of a result."""
    return rows[0][0]


def nothing(rows: list[Row]) -> None:
    """Ignores the result."""
    return
