"""Signals, kills, broken connections and restarts lose nothing."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from pgque_dagster import installer
from pgque_dagster.client import Client, Delivery
from tests.client.consumer.support import DONE, Queue, collect, expire_leases, run_until, running
from tests.conftest import new_server
from tests.support.queues.sql import PATIENCE_SECONDS, Connection, connect
from tests.support.runner.waiting import wait_until

# In a process of its own, which a signal may end. Its handler waits in the first event until "go".
SIGNALLED = """
import signal, sys, time
from pathlib import Path
from pgque_dagster.client import Consumer

# As in a terminal: a shell without job control has its background processes ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
url, folder = sys.argv[1], Path(sys.argv[2])
consumer = Consumer(url, "q", "c")

def stop(told=consumer.stop):
    told()
    (folder / "told").touch()

consumer.stop = stop

@consumer.on()
def handle(message):
    (folder / f"began-{message.payload}").touch()
    while message.payload == "long" and not (folder / "go").exists():
        time.sleep(0.01)
    (folder / f"ended-{message.payload}").touch()

consumer.run()
(folder / "returned").touch()
"""
END_ALL_SESSIONS = (
    "select pg_terminate_backend(pid) from pg_stat_activity"
    " where datname = current_database() and pid <> pg_backend_pid()"
)


class TestSignals:
    @pytest.fixture
    def start(self, q: Queue, tmp_path: Path) -> Iterator[Callable[[], "subprocess.Popen[bytes]"]]:
        """Starts a process that handles a batch of two events and waits in the first."""
        with ExitStack() as stack:

            def started() -> "subprocess.Popen[bytes]":
                command = [sys.executable, "-c", SIGNALLED, q.url, str(tmp_path)]
                process = stack.enter_context(subprocess.Popen(command))
                stack.callback(process.kill)
                wait_until((tmp_path / "began-long").exists)
                return process

            q.send("long", "short")
            yield started

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_lets_the_current_batch_be_handled_and_acked(
        self,
        q: Queue,
        start: Callable[[], "subprocess.Popen[bytes]"],
        tmp_path: Path,
        number: signal.Signals,
    ) -> None:
        process = start()
        q.send("next batch")
        process.send_signal(number)
        wait_until((tmp_path / "told").exists)
        (tmp_path / "go").touch()
        assert process.wait(PATIENCE_SECONDS) == 0
        names = {file.name for file in tmp_path.iterdir()} - {"go", "told"}
        assert names == {"began-long", "ended-long", "began-short", "ended-short", "returned"}
        assert [message.payload for message in q.receive()] == ["next batch"]

    def test_a_second_signal_ends_it_at_once_and_releases_the_batch(
        self, q: Queue, start: Callable[[], "subprocess.Popen[bytes]"], tmp_path: Path
    ) -> None:
        process = start()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            process.send_signal(signal.SIGINT)
            time.sleep(0.1)
        assert process.returncode != 0
        assert not (tmp_path / "ended-long").exists()
        batch = q.client.claim("q", "c", owner="next")
        assert batch is not None and len(batch.events()) == 2

    def test_a_kill_leaves_the_batch_to_the_next(
        self,
        q: Queue,
        start: Callable[[], "subprocess.Popen[bytes]"],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        process = start()
        process.kill()
        consumer = q.consumer()
        handled = collect(consumer)
        caplog.set_level("INFO", "pgque.consumer")
        with running(consumer):
            wait_until(lambda: f":{process.pid}:" in caplog.text)
            assert handled == []
            expire_leases(q.db)
            wait_until(q.is_acked)
        assert handled == ["long", "short"]


def test_a_broken_connection_in_a_batch_is_made_again(
    q: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = q.consumer()
    handled: list[str | None] = []

    @consumer.on()
    def handle(message: Delivery) -> None:
        handled.append(message.payload)
        if len(handled) == 1:
            q.db.rows(END_ALL_SESSIONS)

    q.send("1")
    with running(consumer) as errors:
        wait_until(lambda: handled == ["1", "1"])
    assert errors == []
    with Client(q.url) as another:
        assert another.lease_info("q", "c") is None
    assert "terminating connection" in caplog.text


def test_a_restart_of_the_server_in_a_batch_loses_nothing() -> None:
    with new_server() as server:
        installer.install(server.url)
        with Client(server.url) as client, connect(server.url) as db:
            db.make_queue()
            db.execute(DONE)
            consumer = Queue(client, db).consumer()
        reached, restarted = threading.Event(), threading.Event()

        @consumer.on(transactional=True)
        def handle(message: Delivery, connection: Connection) -> None:
            connection.execute("insert into done (id) values (%s)", (message.payload,))
            if message.payload == "2" and not restarted.is_set():
                reached.set()
                restarted.wait(PATIENCE_SECONDS)

        with running(consumer) as errors:
            with Client(server.url) as client, connect(server.url) as db:
                client.send_batch("q", ["1", "2", "3"])
                db.tick()
            assert reached.wait(PATIENCE_SECONDS)
            server.stop()
            server.start()
            restarted.set()
            with connect(server.url) as db:
                wait_until(lambda: len(db.rows("select from done")) >= 3)
        assert errors == []
        with connect(server.url) as db:
            assert db.rows("select id from done") == [("1",), ("2",), ("3",)]
            assert db.rows("select from pgque.retry_queue") == []


def test_a_clock_that_jumps_changes_nothing(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = q.consumer()
    handled: list[str | None] = []
    true_time = time.time

    @consumer.on()
    def handle(message: Delivery) -> None:
        handled.append(message.payload)
        hours = 24 if len(handled) % 2 else -24
        monkeypatch.setattr(time, "time", lambda: true_time() + hours * 3600)

    q.send("1", "2")
    q.send("3")
    run_until(consumer, lambda: len(handled) == 3 and q.is_acked())
    assert handled == ["1", "2", "3"]


def test_the_lease_is_renewed_while_a_handler_works(q: Queue) -> None:
    consumer = q.consumer(lease=timedelta(seconds=1.5))
    ends = "select lease_until from pgque.get_lease_info('q', 'c')"

    @consumer.on()
    def handle(message: Delivery) -> None:
        first = q.db.value(ends)
        wait_until(lambda: q.db.value(ends) > first)

    q.send("1")
    q.run(consumer)
    assert q.retried() == []
