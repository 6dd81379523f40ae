"""Runs ticks and maintenance from a client process, for databases without pg_cron."""

import logging
import threading
import time
from collections.abc import Iterator
from functools import partial

from .client import Client
from .installation import tick_period
from .running import PASSING, keep_running

logger = logging.getLogger(__name__)

_MAINT_SECONDS = 10.0


class Ticker:
    """Calls the ticker every tick period, and maintenance every 10 seconds.

    Several tickers can run for one database; two concurrent ticks create only one. After a broken
    connection, or another error that can pass (such as a queue dropped during a tick), the ticker
    reconnects after a wait that grows up to 30 seconds.

    Args:
        url: the database.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Makes `run` return after the current tick. Safe to call from a signal handler."""
        self._stopped.set()

    def run(self) -> None:
        """Ticks until `stop`.

        Raises:
            PgqueError: for an error that a retry cannot fix, such as a missing schema or role.
        """
        keep_running(self._ticks, self._stopped, PASSING, partial(logger.warning, "%s %s"))

    def _ticks(self) -> Iterator[None]:
        with Client(self._url) as client:
            period = client.run(tick_period()).total_seconds()
            next_tick = time.monotonic()
            next_maint = next_tick
            while not self._stopped.is_set():
                client.ticker()
                # While there is more to do, such as further retries, with a tick between.
                if time.monotonic() >= next_maint and client.maint() == 0:
                    next_maint = time.monotonic() + _MAINT_SECONDS
                yield
                next_tick = max(next_tick + period, time.monotonic())
                self._stopped.wait(next_tick - time.monotonic())
