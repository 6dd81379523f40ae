"""What is written once for both faces: coroutines, which on a plain connection wait for nothing.

An object of psycopg is plain or asynchronous. The functions here take either.
"""

import inspect
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that waits for nothing, and returns its result."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise RuntimeError("a coroutine on a plain connection waits for something")


class Finished(AbstractContextManager[T]):
    """A context whose coroutines wait for nothing, for a plain `with` statement."""

    def __init__(self, context: AbstractAsyncContextManager[T]) -> None:
        self._context: Any = context

    def __enter__(self) -> T:
        """Enters the context."""
        return finished(self._context.__aenter__())  # type: ignore[no-any-return]

    def __exit__(self, *error: Any) -> bool | None:
        """Leaves the context."""
        return finished(self._context.__aexit__(*error))  # type: ignore[no-any-return]


async def settled(value: Any) -> Any:
    """Returns a value, or what it is awaited for."""
    return await value if inspect.isawaitable(value) else value


async def listed(values: Iterable[T] | AsyncIterator[T]) -> list[T]:
    """Returns the values of an iterator of either kind."""
    if isinstance(values, AsyncIterator):
        return [value async for value in values]
    return list(values)


@asynccontextmanager
async def within(
    context: AbstractContextManager[T] | AbstractAsyncContextManager[T],
) -> AsyncIterator[T]:
    """Enters a context of either kind."""
    if isinstance(context, AbstractAsyncContextManager):
        async with context as value:
            yield value
    else:
        with context as value:
            yield value
