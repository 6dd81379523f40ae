"""Sessions that publish to a serial queue at the same time, and do not always commit."""

import threading
from contextlib import suppress

import psycopg

from tests.support.queues import connect, value
from tests.support.serial import publish


class Publishers:
    """Threads that publish their own running numbers; some transactions roll back, some die."""

    def __init__(self, url: str, threads: int, transactions: int, queue: str = "sp") -> None:
        self._url = url
        self._queue = queue
        self._transactions = transactions
        self.committed: dict[int, list[str]] = {}
        self._threads = [threading.Thread(target=self._run, args=(nr,)) for nr in range(threads)]

    def __enter__(self) -> "Publishers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        for thread in self._threads:
            thread.join()

    @property
    def are_running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _run(self, thread: int) -> None:
        done = self.committed[thread] = []
        db = connect(self._url)
        for nr in range(self._transactions):
            texts = [f"{thread}:{nr}:{part}" for part in range(nr % 3 + 1)]
            with suppress(psycopg.OperationalError), db.transaction(force_rollback=nr % 4 == 3):
                publish(db, *texts, queue=self._queue)
                if nr % 7 == 6:
                    value(db, "select pg_terminate_backend(pg_backend_pid())")
                if nr % 4 != 3:
                    done += texts
            if db.closed:
                db = connect(self._url)
        db.close()
