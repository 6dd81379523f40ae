"""Handles Ctrl-C and SIGTERM, so that a program stops everything that it started."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Raises SystemExit at the first signal, and ignores further signals.

    Use it as a context manager around everything that must be stopped at the end.
    """

    def __init__(self) -> None:
        self._deferring = False
        self._pending: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def ignore(self) -> None:
        """Ignores further signals, because the program is already stopping."""
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Defers signals until the block ends, so that a process started in it can be stopped."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False
            if self._pending is not None:
                self._exit(self._pending)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._deferring:
            self._pending = number
        else:
            self._exit(number)

    def _exit(self, number: int) -> None:
        self.ignore()
        raise SystemExit(128 + number)
