"""Publishers and consumers are killed and stopped, sessions end, the server dies, parts rotate:
each message is acked once in each queue.
"""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import pytest

from tests.addons.conftest import addon_sql
from tests.conftest import INSTALL_SQL, administer, new_server
from tests.engine.test_chaos import crash
from tests.support import message_chaos
from tests.support.crowd import disturb_one
from tests.support.messages import statistics
from tests.support.queues import PATIENCE_SECONDS, Connection, connect, rows, value

ROOT = Path(__file__).parents[3]
VICTIMS = "select pid from pg_stat_activity where application_name ~ '^chaos'"


class Workers:
    """The processes, one for each role of the cast. One that is killed is replaced."""

    def __init__(self, url: str, sink: str, random: Random) -> None:
        self._arguments = (url, sink)
        self._random = random
        self._running = [self._start(role) for role in message_chaos.CAST]

    def _start(self, role: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.support.message_chaos", role, *self._arguments]
        return subprocess.Popen([*command, str(self._random.getrandbits(31))], cwd=ROOT)

    def disturb_one(self) -> None:
        """Kills a process, or stops it until others have what it has claimed."""
        number = self._random.randrange(len(self._running))
        process = self._running[number]
        assert process.poll() is None, f"{message_chaos.CAST[number]} has ended"
        if self._random.random() < 0.7:
            process.kill()
            process.wait()
            self._running[number] = self._start(message_chaos.CAST[number])
        else:
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(1.5 * message_chaos.VT_SECONDS)
            os.kill(process.pid, signal.SIGCONT)

    def wait(self) -> list[int]:
        return [process.wait(timeout=PATIENCE_SECONDS) for process in self._running]

    def kill(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()


@contextmanager
def workers(url: str, sink: str, random: Random) -> Iterator[Workers]:
    running = Workers(url, sink, random)
    try:
        yield running
    finally:
        running.kill()


def disturb(url: str, running: Workers, random: Random, cuts: int) -> None:
    """Disturbs so many processes and sessions, one after the other, while messages are acked."""
    deadline = time.monotonic() + PATIENCE_SECONDS + 3 * cuts
    with connect(url) as db:
        acked = value(db, "select count(*) from sink")
        while cuts > 0 or value(db, "select count(*) from sink") < acked + 100:
            assert time.monotonic() < deadline, f"{cuts} to go"
            victims = rows(db, VICTIMS)
            if random.random() < 0.5:
                running.disturb_one()
                cuts -= 1
            elif victims:
                cuts -= disturb_one(db, random, *random.choice(victims))
            time.sleep(random.uniform(0, 0.2))


def run(cuts: int) -> None:
    seed = secrets.randbelow(2**31)
    print(f"seed {seed}")
    random = Random(seed)
    with new_server() as server, ExitStack() as stack:
        url = server.url
        administer(server, "create database sink")
        sink = server.database_url("sink")
        with connect(url) as db, connect(sink) as outside:
            db.execute(INSTALL_SQL.read_bytes())
            db.execute(addon_sql("postgremq"))
            message_chaos.prepare(db)
            outside.execute(message_chaos.SINK.encode())
        with workers(url, sink, random) as running:
            disturb(url, running, random, cuts // 2)
            crash(server, stack)
            disturb(url, running, random, cuts // 2)
            with connect(url) as db:
                db.execute("insert into stop default values")
            codes = running.wait()
        with connect(url) as db, connect(sink) as outside:
            message_chaos.drain(db, sink)
            check_books(db, rows(outside, "select id, payload from sink order by id"))
        assert codes == [0] * len(codes)


def check_books(db: Connection, outside: list[tuple[int, str]]) -> None:
    """Each message whose publisher has committed, and no other, once in each queue."""
    published = rows(db, "select id, payload from ledger order by id")
    assert rows(db, "select id, payload #>> '{}' from postgremq.messages order by id") == published
    for queue in message_chaos.QUEUES:
        acked = f"select id, payload from sink where queue = '{queue}' order by id"
        assert rows(db, acked) == published
        assert statistics(db, queue) == (0, 0, len(published), len(published))
    assert outside == published
    changed = (
        "select relname from pg_stat_user_tables where schemaname = 'postgremq'"
        " and relname ~ '^(state|floor|messages|finished)' and (n_tup_upd > 0 or n_tup_del > 0)"
    )
    assert rows(db, changed) == []


def test_each_committed_message_is_acked_once_in_each_queue() -> None:
    run(cuts=12)


@pytest.mark.slow
def test_each_committed_message_is_acked_once_in_each_queue_for_minutes() -> None:
    run(cuts=400)
