"""Calls plain functions in threads that do not keep the process from ending."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


async def in_daemon_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls a function in a thread of its own, and returns its result.

    The threads of `asyncio.to_thread` are waited for when the loop and the process end.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    context = copy_context()
    results: list[T] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(context.run(function, *args, **kwargs))
        except BaseException as error:
            errors.append(error)
        # The loop is closed if the function returned too late.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(note_end)

    def note_end() -> None:
        if not ended.done():
            ended.set_result(None)

    threading.Thread(target=call, daemon=True).start()
    await ended
    if errors:
        raise errors[0]
    return results[0]
