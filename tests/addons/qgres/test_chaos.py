"""Sessions are ended, cancelled and paused, the server dies: each entry is read once, in order."""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random

import psycopg
import pytest

from pgque_dagster.embedded import EmbeddedPostgres
from tests.addons.conftest import addon_sql
from tests.conftest import INSTALL_SQL, administer, new_server, server_version
from tests.support import serial_chaos
from tests.support.debian import DebianPostgres
from tests.support.queues import PATIENCE_SECONDS, Connection, connect, rows, value

ROOT = Path(__file__).parents[3]
VICTIMS = "select pid from pg_stat_activity where application_name ~ '^chaos'"


@contextmanager
def workers(url: str, sink: str, seed: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [sys.executable, "-m", "tests.support.serial_chaos"]
    running = [
        subprocess.Popen([*command, role, url, sink, str(seed + number)], cwd=ROOT)
        for number, role in enumerate(serial_chaos.CAST)
    ]
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def disturb(db: Connection, random: Random, cuts: int) -> None:
    """Disturbs so many sessions, one after the other, while entries are sent."""
    enough = value(db, "select count(*) from ledger") + 5 * cuts
    deadline = time.monotonic() + PATIENCE_SECONDS + cuts
    disturbed = 0
    while disturbed < cuts or value(db, "select count(*) from ledger") < enough:
        assert time.monotonic() < deadline, f"{disturbed} sessions disturbed"
        victims = rows(db, VICTIMS)
        if victims:
            disturb_one(db, random, *random.choice(victims))
            disturbed += 1
        time.sleep(random.uniform(0, 0.1))


def disturb_one(db: Connection, random: Random, pid: int) -> None:
    """Ends a session, cancels its statement, or stops its process for a moment."""
    what = random.random()
    if what < 0.6:
        value(db, "select pg_terminate_backend(%s)", pid)
    elif what < 0.9:
        value(db, "select pg_cancel_backend(%s)", pid)
    else:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.5)
            os.kill(pid, signal.SIGCONT)


def crash(server: EmbeddedPostgres | DebianPostgres, stack: ExitStack) -> None:
    """The server dies without a word, and comes back."""
    if isinstance(server, DebianPostgres):
        server.crash()
        return
    os.kill(server.pid, signal.SIGKILL)
    stack.enter_context(EmbeddedPostgres(server.data_dir, version=server_version()))


def run(cuts: int) -> None:
    seed = secrets.randbelow(2**31)
    print(f"seed {seed}")
    random = Random(seed)
    with new_server() as server, ExitStack() as stack:
        url = server.url
        administer(server, "create database sink")
        sink = server.database_url("sink")
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(INSTALL_SQL.read_bytes())
            db.execute(addon_sql("qgres"))
            serial_chaos.prepare(db)
            with connect(sink) as other:
                other.execute(serial_chaos.SINK.encode())
        with workers(url, sink, seed) as running:
            with connect(url) as db:
                disturb(db, random, cuts // 2)
            crash(server, stack)
            with connect(url) as db:
                disturb(db, random, cuts // 2)
                db.execute("insert into stop default values")
            codes = [process.wait(timeout=PATIENCE_SECONDS) for process in running]
        with connect(url) as db, connect(sink) as other:
            serial_chaos.drain(db, sink)
            check_books(db, rows(other, "select number, payload from sink order by number"))
        assert codes == [0] * len(codes)


def check_books(db: Connection, outside: list[tuple[int, str]]) -> None:
    """Numbers without gaps, and each committed entry once for each consumer."""
    ledger = "select number, payload from {} where queue = 'sp' order by number"
    published = rows(db, ledger.format("ledger"))
    assert [number for number, _ in published] == list(range(1, len(published) + 1))
    assert rows(db, ledger.format("sink")) == published
    assert outside == published
    added = "select payload from {} where queue = 'sr' order by payload"
    assert rows(db, added.format("sink")) == rows(db, added.format("ledger"))


def test_each_committed_entry_is_read_once() -> None:
    run(cuts=12)


@pytest.mark.slow
def test_each_committed_entry_is_read_once_for_minutes() -> None:
    run(cuts=600)
