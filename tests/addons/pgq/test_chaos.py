"""Consumers of python3-pgq are killed and paused, and the server crashes.

No event is lost, and none is in the sink twice. The sink has no unique key: what keeps events from
being there twice is the transaction that finishes the batch.
"""

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.addons.conftest import addon_sql, crash
from tests.conftest import INSTALL_SQL, new_server
from tests.support.pgq_programs import SINK, Programs, pgqd, wait_until
from tests.support.queues import Connection, connect, rows, tick, value

pytestmark = [
    pytest.mark.program("python3-pgq"),
    pytest.mark.program("pgqd"),
]


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


def waiting_in_a_batch(db: Connection) -> int:
    """How many programs are in a transaction, between two events."""
    number: int = value(
        db,
        "select count(*) from pg_stat_activity where state = 'idle in transaction'"
        " and query like 'insert into sink%'",
    )
    return number


def test_a_paused_worker_cannot_finish_what_another_took_over(
    db: Connection, programs: Programs
) -> None:
    value(db, "select pgq.create_queue('q')")
    value(db, "select pgq_coop.register_subconsumer('q', 'c', 'paused')")
    for number in range(100):
        value(db, "select pgq.insert_event('q', 't', %s)", f"slow {number}")
        if number % 50 == 49:
            tick(db)
    worker = {"subconsumer_timeout": "1 s"}
    paused = programs.start("CoopConsumer", subconsumer_name="paused", **worker)
    wait_until(lambda: waiting_in_a_batch(db))
    os.kill(paused.pid, signal.SIGSTOP)
    killed = programs.start("CoopConsumer", subconsumer_name="killed", **worker)
    wait_until(lambda: waiting_in_a_batch(db) == 2 or len(noted(db)) == 50)
    killed.kill()
    killed.wait()
    programs.start("CoopConsumer", subconsumer_name="other", **worker)
    wait_until(lambda: len(noted(db)) == 100)
    os.kill(paused.pid, signal.SIGCONT)
    wait_until(lambda: "batch not found" in programs.logs())
    assert noted(db) == list(range(100))
    assert ("paused",) not in rows(db, "select consumer from sink")


def test_a_crash_of_a_consumer_and_of_the_server_loses_and_doubles_nothing(tmp_path: Path) -> None:
    with new_server() as server, ExitStack() as stack:
        with connect(server.url) as db:
            db.execute(INSTALL_SQL.read_bytes())
            db.execute(addon_sql("pgq"))
            db.execute(SINK.encode())
            value(db, "select pgq.create_queue('q')")
        programs = Programs(tmp_path, server.url)
        stack.callback(programs.stop)
        programs.call("Consumer", "--register")
        with connect(server.url) as db:
            send(db, 0, 60)
            for _ in range(3):
                process = programs.start("Consumer")
                wait_until(lambda: waiting_in_a_batch(db))
                process.kill()
                process.wait()
            programs.start("Consumer")
            wait_until(lambda: waiting_in_a_batch(db))
        crash(server, stack)
        with connect(server.url) as db, pgqd(tmp_path, server.url):
            send(db, 60, 20)
            wait_until(lambda: len(noted(db)) >= 80)
            assert noted(db) == list(range(80))
