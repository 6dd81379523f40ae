"""Runs ticks and maintenance from a client process, for databases without pg_cron."""

import logging
import threading
import time

from . import calls
from .client import Client
from .errors import ConnectionFailed, DatabaseError, TransactionOutdated

logger = logging.getLogger(__name__)

_LONGEST_WAIT = 30.0
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
        wait = 0.1
        while not self._stopped.is_set():
            try:
                with Client(self._url) as client:
                    wait = 0.1
                    self._tick(client)
            except (ConnectionFailed, TransactionOutdated, DatabaseError) as error:
                logger.warning("%s Trying again in %.1f s.", error, wait)
                self._stopped.wait(wait)
                wait = min(wait * 2, _LONGEST_WAIT)

    def _tick(self, client: Client) -> None:
        period = client.run(calls.maintenance.tick_period()).total_seconds()
        next_tick = time.monotonic()
        next_maint = next_tick
        while not self._stopped.is_set():
            client.ticker()
            # While there is more to do, such as further retries, with a tick between.
            if time.monotonic() >= next_maint and client.maint() == 0:
                next_maint = time.monotonic() + _MAINT_SECONDS
            next_tick = max(next_tick + period, time.monotonic())
            self._stopped.wait(next_tick - time.monotonic())
