"""One definition of each method for the synchronous and the asynchronous client."""

import functools
from collections.abc import Callable, Coroutine
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from .calls.call import Call, Steps

T = TypeVar("T")
P = ParamSpec("P")


class Face:
    """An object whose operations return their results.

    Attributes:
        session: runs them.
    """

    session: Any

    def run(self, work: Call[T] | Steps[T]) -> T:
        """Runs a call, or several steps in one transaction; returns the parsed result."""
        return self.session.run(work)  # type: ignore[no-any-return]


class AsyncFace:
    """An object whose operations are coroutines.

    Attributes:
        session: runs them.
    """

    session: Any

    async def run(self, work: Call[T] | Steps[T]) -> T:
        """Runs a call, or several steps in one transaction; returns the parsed result."""
        return await self.session.run(work)  # type: ignore[no-any-return]


class operation(Generic[P, T]):  # noqa: N801
    """Decorates a method that returns the work to do: a call, or a generator of steps.

    The method of a `Face` runs the work. The method of an `AsyncFace` is a coroutine function with
    the same parameters and documentation.
    """

    def __init__(self, plan: Callable[Concatenate[Any, P], Call[T] | Steps[T]]) -> None:
        self.__doc__ = plan.__doc__

        @functools.wraps(plan)
        def run(face: Face, *args: P.args, **kwargs: P.kwargs) -> T:
            return face.run(plan(face, *args, **kwargs))

        @functools.wraps(plan)
        async def run_async(face: AsyncFace, *args: P.args, **kwargs: P.kwargs) -> T:
            return await face.run(plan(face, *args, **kwargs))

        self._run = run
        self._run_async = run_async

    @overload
    def __get__(self, face: Face, owner: type) -> Callable[P, T]: ...

    @overload
    def __get__(self, face: AsyncFace, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...

    @overload
    def __get__(self, face: None, owner: type) -> Callable[..., Any]: ...

    def __get__(self, face: Any, owner: type) -> Callable[..., Any]:
        """Returns the method that fits the class."""
        method: Any = self._run_async if issubclass(owner, AsyncFace) else self._run
        return method if face is None else MethodType(method, face)
