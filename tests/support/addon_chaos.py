"""The workers of an add-on as processes that may end, stop or lose the connection at any time.

A play says what they do: message_chaos.py or serial_chaos.py.

    python -m PLAY ROLE URL SINK_URL SEED
"""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any

import psycopg

from pgque_dagster.embedded import EmbeddedPostgres
from tests.conftest import INSTALL_SQL, administer, new_server, server_version
from tests.support.debian import DebianPostgres
from tests.support.queues import PATIENCE_SECONDS, Connection, connect, rows, value

ROOT = Path(__file__).parents[2]
VICTIMS = "select pid from pg_stat_activity where application_name ~ '^chaos'"

Work = Callable[[Connection, str, Random], None]


def work(roles: Mapping[str, Work], role: str, url: str, sink: str, seed: str) -> None:
    """Works until `stop` holds a row. Ends at an error that no lost connection explains."""
    random = Random(int(seed))
    while True:
        try:
            with connect(f"{url}&application_name=chaos-{role}") as db:
                while not value(db, "select count(*) from stop"):
                    roles[role](db, sink, random)
                return
        except psycopg.Error as error:
            state = error.sqlstate
            if state is not None and not state.startswith(("08", "57")):
                raise
        time.sleep(0.05)


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
        elif victims := rows(db, VICTIMS):
            (pid,) = self._random.choice(victims)
            if what < 0.8:
                value(db, "select pg_terminate_backend(%s)", pid)
            elif what < 0.95:
                value(db, "select pg_cancel_backend(%s)", pid)
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


def crash(server: EmbeddedPostgres | DebianPostgres, stack: ExitStack) -> None:
    """The server dies without a word, and comes back."""
    if isinstance(server, DebianPostgres):
        return server.crash()
    os.kill(server.pid, signal.SIGKILL)
    stack.enter_context(EmbeddedPostgres(server.data_dir, version=server_version()))
    return None


def _disturb(url: str, workers: Workers, random: Random, cuts: int) -> None:
    """Disturbs so many times, one after the other, and lets the sink fill."""
    with connect(url) as db:
        stored = value(db, "select count(*) from sink")
        for _ in range(cuts):
            workers.disturb_one(db)
            time.sleep(random.uniform(0, 0.2))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while value(db, "select count(*) from sink") < stored + 10 * cuts:
            assert time.monotonic() < deadline, "the work does not go on"
            time.sleep(0.05)


def perform(play: Any, addon_sql: bytes, cuts: int) -> None:
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
            db.execute(addon_sql)
            play.prepare(db)
            outside.execute(play.SINK)
        workers = Workers(play, url, sink, random)
        stack.callback(workers.kill)
        _disturb(url, workers, random, cuts // 2)
        crash(server, stack)
        _disturb(url, workers, random, cuts // 2)
        with connect(url) as db:
            db.execute("insert into stop default values")
        codes = workers.wait()
        with connect(url) as db, connect(sink) as outside:
            play.drain(db, sink)
            play.check_books(db, rows(outside, "select id, payload from sink order by id"))
        assert codes == [0] * len(codes)
