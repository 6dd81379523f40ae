"""Runs programs until a signal stops them, and continues after temporary errors."""

import logging
import signal
import threading
import time
from _thread import start_new_thread  # noqa: PLC2701
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType

from .client import Client
from .errors import ConnectionFailed, DatabaseError, TransactionOutdated
from .installation import tick_period

logger = logging.getLogger("pgque_dagster.client.ticker")

# Errors of the ticker; a missing right must be fixed by the person who starts it.
_PASSING = (ConnectionFailed, DatabaseError, TransactionOutdated)
_SHORTEST = 0.1
_LONGEST = 30.0
_MAINT_SECONDS = 10.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopping_on_signals(
    stop: Callable[[], None], numbers: Sequence[signal.Signals] = _SIGNALS
) -> Iterator[list[int]]:
    """Calls `stop` in a new thread at the first of the signals in the block.

    A second signal does what it did before the block, such as raise KeyboardInterrupt. In threads
    other than the main one, signals are left alone.

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
        # Not in this thread, which may hold the lock of the event that `stop` sets. `threading`
        # has locks of its own.
        start_new_thread(stop, ())

    for number in numbers:
        signal.signal(number, drain)
    try:
        yield received
    finally:
        restore()


def keep_running(
    work: Callable[[], Iterator[object]],
    stopped: threading.Event,
    passes: Callable[[Exception], bool],
    log: Callable[[Exception, str], None],
) -> None:
    """Works until `stopped` is set; retries after temporary errors, in 0.1 s, 0.2 s, up to 30 s.

    Args:
        work: yields after each step that succeeded, which makes waits short again.
        stopped: ends the waits, and has to end `work`.
        passes: returns whether an error is temporary.
        log: is called with such an error and a sentence about the wait.
    """
    wait = _SHORTEST
    while not stopped.is_set():
        try:
            for _ in work():
                wait = _SHORTEST
        except Exception as error:
            if not passes(error):
                raise
            log(error, f"Trying again in {wait:.1f} s.")
            stopped.wait(wait)
            wait = min(wait * 2, _LONGEST)


class Ticker:
    """Calls the ticker every tick period, and maintenance every 10 seconds.

    Several tickers can run for one database; two concurrent ticks create only one tick. After a
    broken connection or another temporary error (such as a queue dropped during a tick), the ticker
    reconnects after a wait of up to 30 seconds.

    Args:
        url: the database.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Makes `run` return after the current tick. Safe in threads."""
        self._stopped.set()

    def run(self) -> None:
        """Ticks until `stop`.

        Raises:
            PgqueError: for an error that a retry cannot fix, such as a missing schema or role.
        """
        log = partial(logger.warning, "%s %s")
        keep_running(self._ticks, self._stopped, lambda error: isinstance(error, _PASSING), log)

    def _ticks(self) -> Iterator[None]:
        with Client(self._url) as client:
            period = client.run(tick_period()).total_seconds()
            next_tick = time.monotonic()
            next_maint = next_tick
            while not self._stopped.is_set():
                client.ticker()
                # While there is more to do, such as more retries, it ticks in between.
                if time.monotonic() >= next_maint and client.maint() == 0:
                    next_maint = time.monotonic() + _MAINT_SECONDS
                yield
                next_tick = max(next_tick + period, time.monotonic())
                self._stopped.wait(next_tick - time.monotonic())
