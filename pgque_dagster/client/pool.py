"""A pool of clients.

psycopg_pool opens connections in the background: if the server is unreachable, the caller gets a
time-out and no reason. This pool connects in the calling thread and raises the reason.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .client import Client
from .errors import PgqueError

_LONGEST_IDLE = 60.0


class ClientPool:
    """Clients of one database. Threads may share the pool.

    Args:
        url: the database.
        max_idle: the number of idle connections to keep open.
    """

    def __init__(self, url: str, max_idle: int) -> None:
        self._url = url
        self._max_idle = max_idle
        self._idle: list[tuple[Client, float]] = []
        self._lock = threading.Lock()

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Lends a client for the duration of the block.

        Yields:
            A client that no other caller uses meanwhile.

        Raises:
            ConnectionFailed: if the server cannot be reached.
        """
        client = self._take() or Client(self._url)
        try:
            yield client
        finally:
            self._give_back(client)

    def close(self) -> None:
        """Closes idle clients now, and lent clients when they are returned."""
        with self._lock:
            self._max_idle = 0
            idle, self._idle = self._idle, []
        for client, _ in idle:
            client.close()

    def _take(self) -> Client | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                client, since = self._idle.pop()
            if time.monotonic() - since < _LONGEST_IDLE and _is_usable(client):
                return client
            client.close()

    def _give_back(self, client: Client) -> None:
        with self._lock:
            if len(self._idle) < self._max_idle:
                self._idle.append((client, time.monotonic()))
                return
        client.close()


def _is_usable(client: Client) -> bool:
    """Checks that the connection works, and resets the settings of its previous user."""
    try:
        client.reset()
    except PgqueError:
        return False
    return True
