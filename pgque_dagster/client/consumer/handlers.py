"""The handlers of a consumer, by type of event."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import HandlerMissing, InvalidArgument
from ..models import Message

Function = Callable[..., Any]


@dataclass(frozen=True)
class Handler:
    """A function for the events of a type.

    Attributes:
        transactional: whether it gets the connection on which the batch is acked.
    """

    function: Function
    transactional: bool = False

    @property
    def name(self) -> str:
        """The function's name."""
        return name_of(self.function)

    def refuse(self, result: object) -> None:
        """Refuses a result that still has to be run, because the event is not handled yet.

        Raises:
            InvalidArgument: if it is a coroutine, a generator or the like.
        """
        kinds = (inspect.isawaitable, inspect.isgenerator, inspect.isasyncgen)
        if not any(is_kind(result) for is_kind in kinds):
            return
        close = getattr(result, "close", None)
        if close is not None:
            # Without this, Python warns that the coroutine was never awaited.
            close()
        raise InvalidArgument(
            f"the handler {self.name} returned a {type(result).__name__}, which is never run; "
            "its batch is not acked",
            "Register a plain function that handles the event before it returns.",
        )


class Handlers:
    """The handlers by type, and the handler for all other types."""

    def __init__(self) -> None:
        # The key None stands for all other types.
        self._by_type: dict[str | None, Handler] = {}

    def add(self, types: tuple[str, ...], function: Function, transactional: bool) -> None:
        """Adds a handler.

        Raises:
            InvalidArgument: if a type already has a handler, or the function cannot be one.
        """
        _check_function(function, transactional)
        for type in types or (None,):
            if type in self._by_type:
                which = "all other types have" if type is None else f"the type {type!r} has"
                raise InvalidArgument(
                    f"{which} a handler already: {self._by_type[type].name}",
                    "Write one handler for each type, and one for all others.",
                )
            self._by_type[type] = Handler(function, transactional)

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._by_type.values())

    def find(self, message: Message) -> Handler:
        """Returns the handler of a message; `check` has ensured that there is one."""
        handler = self._of(message.type)
        assert handler is not None
        return handler

    def found(self, types: Iterable[str | None]) -> list[Handler]:
        """Returns the handlers that messages of the types need."""
        return [handler for type in types if (handler := self._of(type))]

    def check(self, types: Iterable[str | None], batch: str) -> None:
        """Raises `HandlerMissing` if some of the types have no handler."""
        # Without any handler, the consumer applies whole batches.
        missing = sorted(str(type) for type in types if self._by_type and not self._of(type))
        if missing:
            names = ", ".join(f'"{name}"' for name in missing)
            raise HandlerMissing(
                f"{batch} has events of type {names}, which have no handler; "
                "none of its events was handled or acked",
                f"Add @consumer.on({names}), or @consumer.on() for all other types, which may "
                "also leave events out by doing nothing.",
            )

    def _of(self, type: str | None) -> Handler | None:
        return self._by_type.get(type or "") or self._by_type.get(None)


def check_types(types: tuple[object, ...]) -> None:
    """Raises `InvalidArgument` if one of a handler's event types is not a string."""
    for type in types:
        if not isinstance(type, str):
            raise InvalidArgument(
                f"{type!r} is not a type of event",
                'Write @consumer.on("created", "paid"), or @consumer.on() for all other types.',
            )


def name_of(function: Function) -> str:
    """Returns the name of a function, or of the class of another callable."""
    return getattr(function, "__name__", None) or type(function).__name__


def _check_function(function: Function, transactional: bool) -> None:
    if inspect.iscoroutinefunction(function):
        raise InvalidArgument(
            f"the handler {name_of(function)} is a coroutine function",
            "Make it a plain function, which may call asyncio.run(); or read batches in your "
            "event loop by AsyncClient.claim.",
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidArgument(
            f"the handler {name_of(function)} is a generator function, which a call does not run",
            "Remove its yield.",
        )
    # A decorator may change the parameters, so those of the wrapped function do not matter.
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except ValueError:
        # Some functions written in C do not report their parameters.
        return
    except TypeError as error:
        raise InvalidArgument(
            f"a handler is a function, not {function!r}", "Decorate a function."
        ) from error
    given = ("message", "connection") if transactional else ("message",)
    try:
        signature.bind(*given)
    except TypeError as error:
        raise InvalidArgument(
            f"the handler {name_of(function)}{signature} cannot be called with "
            f"({', '.join(given)}): {error}",
            "A handler takes the message, and a transactional one also the connection.",
        ) from error
