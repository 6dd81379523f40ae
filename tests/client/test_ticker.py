"""The ticker of a process: it ticks, maintains, survives, and stops."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pgque_dagster.client import Ticker
from pgque_dagster.client.running import stopping_on_signals
from tests.client.consumer.support import Queue
from tests.support.queues.sql import PATIENCE_SECONDS
from tests.support.runner.waiting import wait_until


@contextmanager
def ticking(q: Queue) -> Iterator[threading.Thread]:
    """A ticker in a thread, which must live until the end of the block, and no longer."""
    ticker = Ticker(q.url)
    thread = threading.Thread(target=ticker.run, daemon=True)
    thread.start()
    try:
        yield thread
        assert thread.is_alive()
    finally:
        ticker.stop()
        thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


@pytest.fixture(autouse=True)
def short_periods(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgque_dagster.client.running._MAINT_SECONDS", 0.05)
    q.client.configure_queue("q", ticker_idle_period="0")
    q.db.execute("update pgque.config set tick_period_ms = 5")


def wait_for_ticks(q: Queue, count: int) -> None:
    """Waits until there are so many more ticks."""
    wanted = q.db.last_tick() + count
    wait_until(lambda: q.db.last_tick() >= wanted)


def test_it_ticks_and_maintains(q: Queue) -> None:
    q.client.send("q", "a")
    with ticking(q):
        wait_for_ticks(q, 3)
        # The other half may be empty again at once.
        compacted = "select rotated_at from pgque.log_rotation where log_name = 'position'"
        before = q.db.value(compacted)
        q.db.bloat_positions()
        wait_until(lambda: q.db.value(compacted) != before)
    assert q.drain() == ["a"]


def test_it_survives_killed_sessions_and_errors_that_pass(q: Queue) -> None:
    with ticking(q):
        for _ in range(3):
            wait_for_ticks(q, 2)
            q.db.rows(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
                " and backend_type = 'client backend'"
            )
        wait_for_ticks(q, 1)
        q.db.execute("alter table pgque.tick_log rename to tick_away")
        q.db.value("select pg_sleep(0.1)::text")
        q.db.execute("alter table pgque.tick_away rename to tick_log")
        wait_for_ticks(q, 3)


def test_two_for_one_database_do_no_harm(q: Queue) -> None:
    sent = [str(number) for number in range(50)]
    with ticking(q), ticking(q):
        for payload in sent:
            q.client.send("q", payload)
        wait_for_ticks(q, 10)
    assert q.drain() == sent


def test_a_signal_stops_it_in_a_thread_that_has_no_lock_of_the_interrupted_one() -> None:
    threads: list[int] = []
    with stopping_on_signals(lambda: threads.append(threading.get_ident())):
        signal.raise_signal(signal.SIGTERM)
        wait_until(lambda: threads)
    assert threads != [threading.get_ident()]
