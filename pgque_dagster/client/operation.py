"""The client's operations, written once for plain and asynchronous connections.

An operation is a function that returns a call, or a generator of steps; it does no input or output.
A session runs it on its connection with coroutines, which never wait on a plain connection.
"""

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from types import MethodType
from typing import (
    Any,
    Concatenate,
    Generic,
    LiteralString,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    overload,
)

T = TypeVar("T")
P = ParamSpec("P")
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Call(Generic[T]):
    """One statement: its text, its parameters, and how to parse its rows."""

    sql: LiteralString
    params: tuple[object, ...]
    parse: Callable[[list[Row]], T]


@dataclass(frozen=True)
class Copy:
    """A COPY FROM STDIN: its statement, and the rows to send. Its result is their number."""

    sql: str
    rows: Iterable[Row]


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


class Face:
    """An object whose operations return their results."""

    session: Any


class AsyncFace:
    """An object whose operations are coroutines."""

    session: Any


class operation(Generic[P, T]):  # noqa: N801
    """Decorates a method that returns the work to do: a call, or a generator of steps.

    The method of a `Face` runs the work: declared as `Call[int]` or `Steps[int]`, it returns an
    int. The method of an `AsyncFace` is a coroutine function with the same parameters and text.
    """

    def __init__(self, plan: Callable[Concatenate[Any, P], Call[T] | Steps[T]]) -> None:
        self.__doc__ = plan.__doc__
        # Tools show the type of the result instead of the work.
        plan.__annotations__ = {**plan.__annotations__, "return": _result_of(plan)}

        @functools.wraps(plan)
        def run(face: Face, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return face.session.run(plan(face, *args, **kwargs))  # type: ignore[no-any-return]

        @functools.wraps(plan)
        async def run_async(face: AsyncFace, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return await face.session.run(  # type: ignore[no-any-return]
                plan(face, *args, **kwargs)
            )

        self._run = run
        self._run_async = run_async

    @overload
    def __get__(self, face: Face, owner: type) -> Callable[P, T]: ...

    @overload
    def __get__(self, face: AsyncFace, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...

    @overload
    def __get__(self, face: None, owner: type[Face]) -> Callable[Concatenate[Any, P], T]: ...

    @overload
    def __get__(
        self, face: None, owner: type[AsyncFace]
    ) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]: ...

    def __get__(self, face: Any, owner: type) -> Callable[..., Any]:
        """Returns the method that fits the class."""
        method: Any = self._run_async if issubclass(owner, AsyncFace) else self._run
        return method if face is None else MethodType(method, face)


def _result_of(plan: Callable[..., object]) -> object:
    """Returns the type of a plan's result, taken from its annotation."""
    work: Any = plan.__annotations__["return"]
    if get_origin(work) is Union:
        work = get_args(work)[0]
    return get_args(work)[-1]


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never waits, and returns its result."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise RuntimeError("a coroutine on a plain connection waits for something")


class Finished(AbstractContextManager[T]):
    """Makes an asynchronous context that never waits usable in a plain `with` statement."""

    def __init__(self, context: AbstractAsyncContextManager[T]) -> None:
        self._context: Any = context

    def __enter__(self) -> T:
        """Enters the context."""
        return finished(self._context.__aenter__())  # type: ignore[no-any-return]

    def __exit__(self, *error: Any) -> bool | None:
        """Leaves the context."""
        return finished(self._context.__aexit__(*error))  # type: ignore[no-any-return]


async def settled(value: Any) -> Any:
    """Returns a value, or awaits it first if it is awaitable."""
    return await value if inspect.isawaitable(value) else value


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
