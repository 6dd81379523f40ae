"""The handlers of a consumer, by type of event."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
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
        """Refuses a result that something else would have to run: the event is not handled yet.

        Raises:
            InvalidArgument: if it is a coroutine, a generator or the like.
        """
        kinds = (inspect.isawaitable, inspect.isgenerator, inspect.isasyncgen)
        if not any(is_kind(result) for is_kind in kinds):
            return
        close = getattr(result, "close", None)
        if close is not None:
            # Without it, Python warns that the coroutine was never awaited.
            close()
        raise InvalidArgument(
            f"the handler {self.name} returned a {type(result).__name__}, which nothing runs; "
            "its batch is not acked",
            "Register a plain function that handles the event before it returns.",
        )


@dataclass
class Handlers:
    """The handlers by type, and the one for all other types."""

    by_type: dict[str, Handler] = field(default_factory=dict)
    other: Handler | None = None

    def add(self, types: tuple[str, ...], function: Function, transactional: bool) -> None:
        """Adds a handler.

        Raises:
            InvalidArgument: if a type has a handler already, or the function cannot be one.
        """
        if inspect.iscoroutinefunction(function):
            raise InvalidArgument(
                f"the handler {name_of(function)} is a coroutine function",
                "Make it a plain function, which may call asyncio.run(); or read batches in your "
                "event loop by AsyncClient.claim.",
            )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidArgument(
                f"the handler {name_of(function)} is a generator function, which a call does not "
                "run",
                "Remove its yield.",
            )
        _check_parameters(function, transactional)
        handler = Handler(function, transactional)
        for type in types:
            if type in self.by_type:
                raise InvalidArgument(
                    f"the type {type!r} has a handler already: {self.by_type[type].name}",
                    "Write one handler for each type.",
                )
            self.by_type[type] = handler
        if not types:
            if self.other is not None:
                raise InvalidArgument(
                    f"all other types have a handler already: {self.other.name}",
                    "Write one handler without types.",
                )
            self.other = handler

    def __iter__(self) -> Any:
        yield from self.by_type.values()
        if self.other is not None:
            yield self.other

    def find(self, message: Message) -> Handler:
        """Returns the handler of a message, for which `check` has found that there is one."""
        handler = self.by_type.get(message.type or "", self.other)
        assert handler is not None
        return handler

    def found(self, types: Iterable[str | None]) -> list[Handler]:
        """Returns the handlers that messages of the types need."""
        return [found for type in types if (found := self.by_type.get(type or "", self.other))]

    def check(self, types: Iterable[str | None], batch: str) -> None:
        """Checks that messages of all the types have a handler.

        Raises:
            HandlerMissing: if some have none.
        """
        if self.other is not None or not self.by_type:
            return
        missing = sorted(str(type) for type in types if (type or "") not in self.by_type)
        if missing:
            names = ", ".join(f'"{name}"' for name in missing)
            raise HandlerMissing(
                f"{batch} has events of type {names}, for which there is no handler; "
                "nothing of it was handled or acked",
                f"Add @consumer.on({names}), or @consumer.on() for all other types, which may "
                "also leave events out by doing nothing.",
            )


def check_types(types: tuple[object, ...]) -> None:
    """Checks the types of events that a handler is for.

    Raises:
        InvalidArgument: if one is no text.
    """
    for type in types:
        if not isinstance(type, str):
            raise InvalidArgument(
                f"{type!r} is no type of event",
                'Write @consumer.on("created", "paid"), or @consumer.on() for all other types.',
            )


def name_of(function: Function) -> str:
    """Returns the name of a function, or of the class of another callable."""
    return getattr(function, "__name__", None) or type(function).__name__


def _check_parameters(function: Function, transactional: bool) -> None:
    # A decorator may change the parameters, so those of the function it wraps do not matter.
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except ValueError:
        # Some functions written in C do not tell their parameters.
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
