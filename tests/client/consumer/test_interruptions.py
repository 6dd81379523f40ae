"""Signals, kills, broken connections and restarts lose nothing."""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from pgque_dagster import installer
from pgque_dagster.client import Client, ConnectionFailed, Consumer, Delivery
from tests.client.consumer.support import is_acked, run_until, running, send, wait_until
from tests.conftest import new_server
from tests.support.queues import PATIENCE_SECONDS, Connection, connect, make_queue, rows, tick

PROGRAM = """
import signal, sys, time
from datetime import timedelta
from pathlib import Path
from pgque_dagster.client import Consumer

# As in a terminal: a shell without job control has its background processes ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
url, folder = sys.argv[1], Path(sys.argv[2])
consumer = Consumer(url, "q", "c", lease=timedelta(seconds=2))

@consumer.on()
def handle(message):
    (folder / f"began-{message.payload}").touch()
    while message.payload == "long" and not (folder / "go").exists():
        time.sleep(0.01)
    (folder / f"ended-{message.payload}").touch()

consumer.run()
(folder / "returned").touch()
"""


ASYNC_PROGRAM = """
import asyncio, sys
from pathlib import Path
from pgque_dagster.client import Consumer

url, folder = sys.argv[1], Path(sys.argv[2])
consumer = Consumer(url, "q", "c")

@consumer.on()
async def handle(message):
    (folder / f"began-{message.payload}").touch()
    while message.payload == "long" and not (folder / "go").exists():
        await asyncio.sleep(0.01)
    (folder / f"ended-{message.payload}").touch()

asyncio.run(consumer.run_async())
(folder / "returned").touch()
"""


@pytest.fixture
def process(client: Client, db: Connection, tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that handles a batch of two events, and waits in the first."""
    send(client, db, "long", "short")
    with subprocess.Popen([sys.executable, "-c", PROGRAM, client.url, str(tmp_path)]) as process:
        wait_until((tmp_path / "began-long").exists)
        yield process
        process.kill()


class TestSignals:
    def test_a_signal_lets_a_consumer_in_an_event_loop_finish_its_batch(
        self, client: Client, db: Connection, tmp_path: Path
    ) -> None:
        send(client, db, "long", "short")
        command = [sys.executable, "-c", ASYNC_PROGRAM, client.url, str(tmp_path)]
        with subprocess.Popen(command) as process:
            wait_until((tmp_path / "began-long").exists)
            process.send_signal(signal.SIGTERM)
            (tmp_path / "go").touch()
            assert process.wait(PATIENCE_SECONDS) == 0
        assert (tmp_path / "ended-short").exists()
        assert (tmp_path / "returned").exists()
        assert is_acked(client)

    def test_an_applications_own_handler_of_signals_stays(
        self, client: Client, db: Connection
    ) -> None:
        async def main() -> list[bool]:
            loop = asyncio.get_running_loop()
            got = asyncio.Event()
            loop.add_signal_handler(signal.SIGTERM, got.set)
            running = asyncio.create_task(consumer.run_async())
            while consumer.health().state != "idle":
                await asyncio.sleep(0.01)
            signal.raise_signal(signal.SIGTERM)
            await asyncio.wait_for(got.wait(), PATIENCE_SECONDS)
            is_running = not running.done()
            consumer.stop()
            await running
            loop.remove_signal_handler(signal.SIGTERM)
            return [is_running]

        consumer = Consumer(client.url, "q", "c")
        consumer.on()(print)
        assert asyncio.run(main()) == [True]

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_lets_the_current_batch_be_handled_and_acked(
        self,
        client: Client,
        db: Connection,
        process: "subprocess.Popen[bytes]",
        tmp_path: Path,
        number: signal.Signals,
    ) -> None:
        send(client, db, "next batch")
        process.send_signal(number)
        (tmp_path / "go").touch()
        assert process.wait(PATIENCE_SECONDS) == 0
        assert (tmp_path / "ended-short").exists()
        assert (tmp_path / "returned").exists()
        assert not (tmp_path / "began-next batch").exists()
        received = client.receive("q", "c")
        assert received is not None
        assert [message.payload for message in received.messages] == ["next batch"]

    def test_a_second_signal_ends_it_at_once_and_releases_the_batch(
        self,
        client: Client,
        process: "subprocess.Popen[bytes]",
        tmp_path: Path,
    ) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            process.send_signal(signal.SIGINT)
            time.sleep(0.1)
        assert process.wait(PATIENCE_SECONDS) != 0
        assert not (tmp_path / "ended-long").exists()
        batch = client.claim("q", "c", owner="next")
        assert batch is not None and len(batch.events()) == 2


def test_a_process_that_is_killed_leaves_its_batch_to_the_next(
    client: Client,
    db: Connection,
    process: "subprocess.Popen[bytes]",
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    process.kill()
    process.wait()
    consumer = Consumer(client.url, "q", "c", poll_interval=timedelta(milliseconds=50))
    handled: list[str | None] = []
    consumer.on()(lambda message: handled.append(message.payload))
    run_until(consumer, lambda: is_acked(client))
    assert handled == ["long", "short"]
    assert f":{process.pid}:" in caplog.text
    assert "delivered again" in caplog.text


def test_a_broken_connection_in_a_batch_is_made_again(
    client: Client, db: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = Consumer(client.url, "q", "c", poll_interval=timedelta(milliseconds=50))
    handled: list[str | None] = []

    @consumer.on()
    def handle(message: Delivery) -> None:
        handled.append(message.payload)
        if len(handled) == 1:
            rows(
                db,
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()",
            )

    send(client, db, "1")
    with Client(client.url), running(consumer) as errors:
        wait_until(lambda: handled == ["1", "1"])
    assert errors == []
    with Client(client.url) as another:
        assert another.lease_info("q", "c") is None
    assert "terminating connection" in caplog.text


def test_a_restart_of_the_server_in_a_batch_loses_nothing() -> None:
    with new_server() as server:
        installer.install(server.url)
        with connect(server.url) as db:
            make_queue(db)
            db.execute("create table done (id text)")
        consumer = Consumer(server.url, "q", "c", poll_interval=timedelta(milliseconds=50))
        reached, restarted = threading.Event(), threading.Event()

        @consumer.on(transactional=True)
        def handle(message: Delivery, connection: Connection) -> None:
            connection.execute("insert into done values (%s)", (message.payload,))
            if message.payload == "2" and not restarted.is_set():
                reached.set()
                restarted.wait(PATIENCE_SECONDS)

        with running(consumer) as errors:
            with Client(server.url) as client, connect(server.url) as db:
                client.send_batch("q", ["1", "2", "3"])
                tick(db)
            assert reached.wait(PATIENCE_SECONDS)
            server.stop()
            server.start()
            restarted.set()
            with connect(server.url) as db:
                wait_until(lambda: len(rows(db, "select from done")) >= 3)
        assert errors == []
        with connect(server.url) as db:
            assert rows(db, "select id from done") == [("1",), ("2",), ("3",)]
            assert rows(db, "select from pgque.retry_queue") == []


def test_an_unreachable_database_ends_the_consumer_at_its_start() -> None:
    consumer = Consumer("host=/nonexistent dbname=x", "q", "c")
    consumer.on()(print)
    with pytest.raises(ConnectionFailed, match="/nonexistent"):
        consumer.run()


def test_a_clock_that_jumps_changes_nothing(
    client: Client, db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = Consumer(client.url, "q", "c")
    handled: list[str | None] = []
    true_time = time.time

    @consumer.on()
    def handle(message: Delivery) -> None:
        handled.append(message.payload)
        hours = 24 if len(handled) % 2 else -24
        monkeypatch.setattr(time, "time", lambda: true_time() + hours * 3600)

    send(client, db, "1", "2")
    send(client, db, "3")
    run_until(consumer, lambda: len(handled) == 3 and is_acked(client))
    assert handled == ["1", "2", "3"]


class TestHealth:
    def test_it_says_what_the_consumer_does(self, client: Client, db: Connection) -> None:
        consumer = Consumer(client.url, "q", "c")
        assert consumer.health().state == "stopped"
        assert not consumer.health().is_ok
        begun, go = threading.Event(), threading.Event()

        @consumer.on()
        def handle(message: Delivery) -> None:
            begun.set()
            go.wait(PATIENCE_SECONDS)

        with running(consumer):
            wait_until(lambda: consumer.health().state == "idle")
            send(client, db, "1")
            begun.wait(PATIENCE_SECONDS)
            health = consumer.health()
            go.set()
        assert (health.state, health.batch_id is not None) == ("working", True)
        assert {check.queue for check in health.checks} == {None, "q"}
        assert consumer.health().state == "stopped"

    def test_a_database_that_cannot_be_reached_is_not_healthy(self) -> None:
        health = Consumer("host=/nonexistent dbname=x", "q", "c").health()
        assert not health.is_ok
        assert health.error is not None and "/nonexistent" in health.error
