"""SIGTERM and SIGINT end a program after its current step."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopping_on_unhandled_sigterm(stop: Callable[[], None]) -> Iterator[None]:
    """Calls `stop` at the first SIGTERM in the block, if it would end the process at once.

    For an event loop, whose application may handle SIGTERM itself; asyncio handles SIGINT.
    """
    is_unhandled = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    with stopping_on_signals(stop, (signal.SIGTERM,) if is_unhandled else ()):
        yield


@contextmanager
def stopping_on_signals(
    stop: Callable[[], None], numbers: Sequence[signal.Signals] = _SIGNALS
) -> Iterator[list[int]]:
    """Calls `stop` at the first of the signals in the block.

    A second one does what it did before the block, such as raise KeyboardInterrupt. In another
    thread than the main one, signals are left alone.

    Yields:
        The number of the signal, once it has come.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {number: signal.getsignal(number) for number in numbers}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def drain(number: int, frame: FrameType | None) -> None:
        restore()
        received.append(number)
        stop()

    for number in numbers:
        signal.signal(number, drain)
    try:
        yield received
    finally:
        restore()
