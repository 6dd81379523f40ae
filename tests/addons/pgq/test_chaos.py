"""Consumers of python3-pgq are killed and paused, and the server crashes.

No event is lost, and none is in the sink twice. The sink has no unique key: what keeps events from
being there twice is the transaction that finishes the batch.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from tests.addons.conftest import addon_sql
from tests.conftest import INSTALL_SQL, new_server
from tests.engine.test_chaos import crash
from tests.support.pgq_programs import SINK, Programs, pgqd, wait_until
from tests.support.queues import Connection, connect, rows, tick, value

pytestmark = [
    pytest.mark.program("python3-pgq"),
    pytest.mark.program("pgqd"),
]

WORKERS = ("w1", "w2", "w3")


def send(db: Connection, first: int, count: int) -> None:
    """Events of which some are retried, in small batches."""
    for number in range(first, first + count):
        kind = "retry" if number % 10 == 7 else "slow"
        value(db, "select pgq.insert_event('q', 't', %s)", f"{kind} {number}")
        if number % 5 == 0:
            tick(db)
    tick(db)


def noted(db: Connection) -> list[int]:
    return sorted(int(text.split()[1]) for (text,) in rows(db, "select payload from sink"))


def is_waiting_in_a_batch(db: Connection) -> bool:
    """Whether a program is in a transaction, between two events."""
    return bool(
        value(
            db,
            "select exists (select from pg_stat_activity where state = 'idle in transaction'"
            " and query like 'insert into sink%')",
        )
    )


@pytest.fixture
def daemon(tmp_path: Path, db: Connection, database_url: str) -> Iterator[None]:
    value(db, "select pgq.create_queue('q')")
    db.execute("update pgq.queue set queue_ticker_max_lag = '0.1 s', queue_ticker_max_count = 5")
    with pgqd(tmp_path, database_url):
        yield


@pytest.mark.usefixtures("daemon")
def test_a_consumer_that_is_killed_loses_and_doubles_nothing(
    db: Connection, programs: Programs
) -> None:
    programs.call("Consumer", "--register")
    send(db, 0, 60)
    for _ in range(4):
        process = programs.start("Consumer")
        wait_until(lambda: is_waiting_in_a_batch(db) or len(noted(db)) >= 60)
        process.kill()
        process.wait()
    programs.start("Consumer")
    wait_until(lambda: len(noted(db)) >= 60)
    assert noted(db) == list(range(60))


@pytest.mark.usefixtures("daemon")
def test_workers_that_are_paused_or_killed_lose_and_double_nothing(
    db: Connection, programs: Programs
) -> None:
    random = Random(1)
    running: dict[str, subprocess.Popen[bytes]] = {}

    def start(worker: str) -> None:
        running[worker] = programs.start(
            "CoopConsumer", subconsumer_name=worker, subconsumer_timeout="1 s"
        )

    value(db, "select pgq_coop.register_subconsumer('q', 'c', 'w1')")
    send(db, 0, 100)
    for worker in WORKERS:
        start(worker)
    paused = []
    for _ in range(6):
        wait_until(lambda: is_waiting_in_a_batch(db) or len(noted(db)) >= 100)
        worker = random.choice([each for each in WORKERS if running[each] not in paused])
        if random.random() < 0.5 and len(paused) < 2:
            os.kill(running[worker].pid, signal.SIGSTOP)
            paused.append(running[worker])
        else:
            running[worker].kill()
            running[worker].wait()
            start(worker)
    # The others take over the batch of a paused worker after a second.
    wait_until(lambda: len(noted(db)) >= 100)
    for process in paused:
        os.kill(process.pid, signal.SIGCONT)
    wait_until(lambda: not is_waiting_in_a_batch(db))
    assert noted(db) == list(range(100))


def test_a_paused_worker_cannot_finish_what_another_took_over(
    db: Connection, programs: Programs
) -> None:
    value(db, "select pgq.create_queue('q')")
    value(db, "select pgq_coop.register_subconsumer('q', 'c', 'w1')")
    for number in range(50):
        value(db, "select pgq.insert_event('q', 't', %s)", f"slow {number}")
    tick(db)
    paused = programs.start("CoopConsumer", subconsumer_name="w1", subconsumer_timeout="1 s")
    wait_until(lambda: is_waiting_in_a_batch(db))
    os.kill(paused.pid, signal.SIGSTOP)
    programs.start("CoopConsumer", subconsumer_name="w2", subconsumer_timeout="1 s")
    wait_until(lambda: len(noted(db)) == 50)
    os.kill(paused.pid, signal.SIGCONT)
    wait_until(lambda: "batch not found" in programs.logs())
    assert noted(db) == list(range(50))
    assert rows(db, "select distinct consumer from sink") == [("w2",)]


def test_a_crash_of_the_server_loses_and_doubles_nothing(tmp_path: Path) -> None:
    with new_server() as server, ExitStack() as stack:
        with connect(server.url) as db:
            db.execute(INSTALL_SQL.read_bytes())
            db.execute(addon_sql("pgq"))
            db.execute(SINK.encode())
            value(db, "select pgq.create_queue('q')")
        programs = Programs(tmp_path, server.url)
        try:
            programs.call("Consumer", "--register")
            with connect(server.url) as db:
                send(db, 0, 40)
                programs.start("Consumer")
                wait_until(lambda: is_waiting_in_a_batch(db))
            crash(server, stack)
            with connect(server.url) as db, pgqd(tmp_path, server.url):
                send(db, 40, 20)
                wait_until(lambda: len(noted(db)) >= 60)
                assert noted(db) == list(range(60))
        finally:
            programs.stop()
