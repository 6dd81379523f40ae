"""Workers on threads, whose sessions end at any moment, for tests/addons/test_chaos.py."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from random import Random
from typing import Any

import psycopg

from tests.support.queues.sql import Connection, connect

Work = Callable[[Connection, str, Random], None]


class Workers:
    """A worker for each role of a play's cast.

    Args:
        play: message_chaos or serial_chaos.
        url: the database with the add-on.
        sink: a second database, where some roles store what they get.
        random: what the workers do follows from it, but not in which order they come.
    """

    def __init__(self, play: Any, url: str, sink: str, random: Random) -> None:
        self._play, self._url, self._sink, self._random = play, url, sink, random
        self._ended = threading.Event()
        self._running: list[Future[None]] = []

    @contextmanager
    def working(self) -> Iterator[None]:
        """Has them work during the block; fails if one met an error."""
        with ThreadPoolExecutor(len(self._play.CAST)) as pool:
            for role in self._play.CAST:
                random = Random(self._random.random())
                self._running.append(pool.submit(self._keep_working, role, random))
            try:
                yield
            finally:
                self._ended.set()
        self.check()

    def check(self) -> None:
        """Raises the error of a worker that has ended."""
        for ended in wait(self._running, 0, FIRST_EXCEPTION).done:
            ended.result()

    def _keep_working(self, role: str, random: Random) -> None:
        while not self._ended.is_set():
            try:
                with connect(f"{self._url}&application_name=chaos-{role}") as db:
                    while not self._ended.is_set():
                        self._play.ROLES[role](db, self._sink, random)
            except psycopg.Error as error:
                state = error.sqlstate
                if state is not None and not state.startswith(("08", "57")):
                    raise
            time.sleep(0.05)


@contextmanager
def losing_quietly(*states: str) -> Iterator[None]:
    """Lets a call fail that another worker has beaten."""
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate not in states:
            raise


def pause(random: Random, longest: float) -> None:
    time.sleep(random.uniform(0, longest))
