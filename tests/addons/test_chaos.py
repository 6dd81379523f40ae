"""Workers of add-ons are killed and stopped, sessions end, the server dies, halves rotate: each
message, and each entry in its order, counts once for each consumer.
"""

import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.addons.conftest import addon_sql, crash
from tests.conftest import INSTALL_SQL, administer, new_server
from tests.support import message_chaos, serial_chaos
from tests.support.queues import PATIENCE_SECONDS, Connection, connect

ROOT = Path(__file__).parents[2]
VICTIMS = "select pid from pg_stat_activity where application_name ~ '^chaos'"

each_play = pytest.mark.parametrize("play", [message_chaos, serial_chaos], ids=lambda it: it.ADDON)


class Workers:
    """The processes, one for each role of the play's cast. One that is killed is replaced."""

    def __init__(self, play: Any, url: str, sink: str, random: Random) -> None:
        self._play = play
        self._arguments = (url, sink)
        self._random = random
        self._running = [self._start(role) for role in play.CAST]

    def _start(self, role: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", self._play.__name__, role, *self._arguments]
        return subprocess.Popen([*command, str(self._random.getrandbits(31))], cwd=ROOT)

    def disturb_one(self, db: Connection) -> None:
        """Kills or stops a process, or ends or stops a session, or cancels its statement."""
        number = self._random.randrange(len(self._running))
        process = self._running[number]
        assert process.poll() is None, f"{self._play.CAST[number]} has ended"
        what = self._random.random()
        if what < 0.35:
            process.kill()
            process.wait()
            self._running[number] = self._start(self._play.CAST[number])
        elif what < 0.5:
            self._pause(process.pid)
        elif victims := db.rows(VICTIMS):
            (pid,) = self._random.choice(victims)
            if what < 0.8:
                db.value("select pg_terminate_backend(%s)", pid)
            elif what < 0.95:
                db.value("select pg_cancel_backend(%s)", pid)
            else:
                self._pause(pid)

    def _pause(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(self._play.PAUSE_SECONDS)
            os.kill(pid, signal.SIGCONT)

    def wait(self) -> list[int]:
        return [process.wait(timeout=PATIENCE_SECONDS) for process in self._running]

    def kill(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()


def disturb(url: str, workers: Workers, random: Random, cuts: int) -> None:
    """Disturbs so many times, one after the other, and lets the sink fill."""
    with connect(url) as db:
        stored = db.value("select count(*) from sink")
        for _ in range(cuts):
            workers.disturb_one(db)
            time.sleep(random.uniform(0, 0.2))
        before, deadline = -1, 0.0
        while (now := db.value("select count(*) from sink")) < stored + 10 * cuts:
            if now > before:
                before, deadline = now, time.monotonic() + PATIENCE_SECONDS
            assert time.monotonic() < deadline, "the work does not go on"
            time.sleep(0.05)


def perform(play: Any, cuts: int) -> None:
    """Lets the workers work while they are disturbed and the server dies; then checks the books."""
    seed = secrets.randbelow(2**31)
    print(f"seed {seed}")
    random = Random(seed)
    with new_server() as server, ExitStack() as stack:
        url = server.url
        administer(server, "create database sink")
        sink = server.database_url("sink")
        with connect(url) as db, connect(sink) as outside:
            db.execute(INSTALL_SQL.read_bytes())
            db.execute(addon_sql(play.ADDON))
            play.prepare(db)
            outside.execute(play.SINK)
        workers = Workers(play, url, sink, random)
        stack.callback(workers.kill)
        disturb(url, workers, random, cuts // 2)
        crash(server, stack)
        disturb(url, workers, random, cuts // 2)
        with connect(url) as db:
            db.execute("insert into stop default values")
        codes = workers.wait()
        with connect(url) as db, connect(sink) as outside:
            play.drain(db, sink)
            play.check_books(db, outside.rows("select id, payload from sink order by id"))
        assert codes == [0] * len(codes)


@each_play
def test_each_committed_message_counts_once(play: Any) -> None:
    perform(play, cuts=8)


@pytest.mark.slow
@each_play
def test_each_committed_message_counts_once_for_minutes(play: Any) -> None:
    perform(play, cuts=400)
