"""Runs a relay until it is stopped, and continues after temporary errors."""

import logging
import threading
from collections.abc import Iterator
from functools import partial
from time import monotonic

from .errors import passes
from .relay.relay import Relay
from .relay.stream import session
from .running import keep_running

logger = logging.getLogger("pgque_dagster.client.relay")

_TAKE = "select pg_try_advisory_lock(hashtextextended('pgque relaying ' || %s, 0))"
_PAUSE = 0.05
# How often it checks whether a session waits for the slot. The check reads all locks.
_LOOK_SECONDS = 0.5


class Relaying:
    """Moves changes into a queue as they are committed.

    Other sessions that make a tick, for example to compare a replica, use the slot in between. A
    second relay waits until the first one ends.
    """

    def __init__(self, url: str, queue: str) -> None:
        self._url, self._queue = url, queue
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Makes `run` return after the current transaction. Safe in threads."""
        self._stopped.set()

    def run(self) -> None:
        """Moves changes until `stop`.

        Raises:
            PgqueError: for an error that a retry cannot fix, such as a slot that is lost.
        """
        keep_running(self._move, self._stopped, passes, partial(logger.warning, "%s %s"))

    def _move(self) -> Iterator[None]:
        with session(self._url) as alone:
            while alone.execute(_TAKE, (self._queue,)).fetchall() == [(False,)]:
                if self._stopped.wait(_LOOK_SECONDS):
                    return
            while not self._stopped.is_set():
                with Relay.of(self._url, self._queue) as relay:
                    yield from self._share(relay)

    def _share(self, relay: Relay) -> Iterator[None]:
        """Moves changes until another session wants to."""
        looks = monotonic() + _LOOK_SECONDS
        while not self._stopped.is_set():
            if monotonic() > looks:
                if relay.is_wanted():
                    return
                looks = monotonic() + _LOOK_SECONDS
            moved = relay.move()
            yield
            if moved.is_complete:
                self._stopped.wait(_PAUSE)
