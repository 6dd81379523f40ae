"""The ticker of a process: it ticks, maintains, survives, and stops."""

import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from pgque_dagster.client import Ticker
from tests.support.queues import (
    Connection,
    bloat_positions,
    drain,
    last_tick,
    make_queue,
    send,
    value,
)

PATIENCE_SECONDS = 60


class Running:
    """A ticker in a thread."""

    def __init__(self, url: str) -> None:
        self.ticker = Ticker(url, maint_interval=timedelta(milliseconds=50))
        self.thread = threading.Thread(target=self.ticker.run, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.ticker.stop()
        self.thread.join(PATIENCE_SECONDS)


@pytest.fixture
def queue(db: Connection) -> Connection:
    make_queue(db, ticker_idle_period="0")
    db.execute("update pgque.config set tick_period_ms = 5")
    return db


@pytest.fixture
def running(queue: Connection, database_url: str) -> Iterator[Running]:
    ticker = Running(database_url)
    yield ticker
    ticker.stop()


def wait_for_ticks(db: Connection, count: int) -> None:
    """Waits until there are so many more ticks."""
    wanted = last_tick(db) + count
    deadline = time.monotonic() + PATIENCE_SECONDS
    while last_tick(db) < wanted:
        assert time.monotonic() < deadline, "the ticker does not tick"
        time.sleep(0.005)


def test_it_ticks(queue: Connection, running: Running) -> None:
    send(queue, "a")
    wait_for_ticks(queue, 3)
    running.stop()
    assert drain(queue) == ["a"]


def test_it_maintains(queue: Connection, running: Running) -> None:
    bloat_positions(queue)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while value(queue, "select pg_relation_size('pgque.position_log_1')") == 0:
        assert time.monotonic() < deadline, "the ticker does not maintain"


def test_it_survives_its_session_being_killed(queue: Connection, running: Running) -> None:
    for _ in range(3):
        wait_for_ticks(queue, 2)
        value(
            queue,
            "select count(pg_terminate_backend(pid)) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
            " and backend_type = 'client backend'",
        )
    wait_for_ticks(queue, 3)
    assert running.thread.is_alive()


def test_it_survives_an_error_that_passes(queue: Connection, running: Running) -> None:
    wait_for_ticks(queue, 1)
    queue.execute("alter table pgque.tick_log rename to tick_away")
    time.sleep(0.1)
    queue.execute("alter table pgque.tick_away rename to tick_log")
    wait_for_ticks(queue, 3)
    assert running.thread.is_alive()


def test_it_stops(queue: Connection, running: Running) -> None:
    wait_for_ticks(queue, 1)
    running.stop()
    assert not running.thread.is_alive()


def test_two_for_one_database_do_no_harm(
    queue: Connection, running: Running, database_url: str
) -> None:
    second = Running(database_url)
    try:
        sent = [str(n) for n in range(50)]
        send(queue, *sent)
        wait_for_ticks(queue, 10)
    finally:
        second.stop()
    running.stop()
    assert drain(queue) == sent
