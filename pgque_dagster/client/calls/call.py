"""What the client runs: statements with their parameters, and how to read their rows.

Nothing here does input or output, so that a synchronous and an asynchronous client share it.
"""

from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, LiteralString, TypeVar

T = TypeVar("T")
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Call(Generic[T]):
    """One statement: its text, its parameters, and how to parse its rows.

    Attributes:
        around: makes a context in which the statement runs, such as a span of a trace; None for
            none.
    """

    sql: LiteralString
    params: tuple[object, ...]
    parse: Callable[[list[Row]], T]
    around: Callable[[], AbstractContextManager[object]] | None = None


@dataclass(frozen=True)
class Copy:
    """A COPY FROM STDIN: its statement, and the blocks of text to send."""

    sql: str
    blocks: Iterable[bytes]


@dataclass(frozen=True)
class Hook:
    """A function of the caller that works with the connection; awaited if it is asynchronous."""

    function: Callable[[Any], object]


Steps = Generator[Call[Any] | Copy | Hook, Any, T]
"""Several steps in one transaction. Each `yield` gives the result of its step."""


def first(rows: list[Row]) -> Any:
    """Returns the single value of a result."""
    return rows[0][0]


def nothing(rows: list[Row]) -> None:
    """Ignores the result."""
    return
