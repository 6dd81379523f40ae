"""Waits for the ticks of a queue."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

from ..connection import connect
from ..errors import translated

# Each wait for NOTIFY is this short, so that `stop` takes effect soon.
_STEP = 0.5


class Wakeup:
    """A connection that gets a NOTIFY for each tick of the queue.

    Behind a pooler of transactions it gets none. Then each wait takes the whole poll interval.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def wait(self, seconds: float, stopped: threading.Event) -> None:
        """Waits for a tick, until `stopped` is set, or so long."""
        ends_at = time.monotonic() + seconds
        while not stopped.is_set() and (left := ends_at - time.monotonic()) > 0:
            with translated():
                ticks = list(self._connection.notifies(timeout=min(_STEP, left), stop_after=1))
            if ticks:
                return


@contextmanager
def listening(url: str, queue: str) -> Iterator[Wakeup]:
    """Listens for the ticks of the queue."""
    with connect(url) as connection:
        with translated():
            connection.execute(sql.SQL("listen {}").format(sql.Identifier(f"pgque_{queue}")))
        yield Wakeup(connection)
