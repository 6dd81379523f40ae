"""Programs that run until they are stopped: by signals, and on after errors that pass."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from .errors import ConnectionFailed, DatabaseError, TransactionOutdated

PASSING = (ConnectionFailed, DatabaseError, TransactionOutdated)
_SHORTEST = 0.1
_LONGEST = 30.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


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


def keep_running(
    work: Callable[[], Iterator[object]],
    stopped: threading.Event,
    passing: tuple[type[Exception], ...],
    log: Callable[[Exception, str], None],
) -> None:
    """Works until `stopped` is set; begins again 0.1 s, 0.2 s, up to 30 s after errors that pass.

    Args:
        work: yields after each step that succeeded, from which on waits are short again.
        stopped: ends the waits, and has to end `work`.
        passing: the errors that pass.
        log: is called with such an error, and a sentence about the wait.
    """
    wait = _SHORTEST
    while not stopped.is_set():
        try:
            for _ in work():
                wait = _SHORTEST
        except passing as error:
            log(error, f"Trying again in {wait:.1f} s.")
            stopped.wait(wait)
            wait = min(wait * 2, _LONGEST)
