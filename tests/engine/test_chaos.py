"""Many processes at once, connections cut and the server killed: the books balance all the same."""

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

import psycopg
import pytest

from pgque_dagster.embedded import EmbeddedPostgres
from tests.conftest import INSTALL_SQL, new_server, server_version
from tests.support import chaos
from tests.support.debian import DebianPostgres
from tests.support.queues import Connection, connect, make_queue, rows, value

ROOT = Path(__file__).parents[2]
CAST = ["producer"] * 3 + ["ticker"] * 2 + ["maintainer"] + ["leased"] * 2 + ["plain"] * 2


@contextmanager
def workers(url: str, seed: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.chaos", role, url, str(seed + number)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
        )
        for number, role in enumerate(CAST)
    ]
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def disturb(url: str, random: Random, seconds: float) -> int:
    """Cuts connections, one after the other; returns how many."""
    cut = 0
    end = time.monotonic() + seconds
    with connect(url) as db:
        while time.monotonic() < end:
            victims = rows(db, "select pid from pg_stat_activity where application_name ~ '^chaos'")
            if victims:
                cut += value(db, "select pg_terminate_backend(%s)::int", *random.choice(victims))
            time.sleep(random.uniform(0, 0.4))
    return cut


def crash(server: EmbeddedPostgres | DebianPostgres, stack: ExitStack) -> None:
    """The server dies without a word, and comes back."""
    if isinstance(server, DebianPostgres):
        return server.crash()
    os.kill(server.pid, signal.SIGKILL)
    version = server_version()
    stack.enter_context(EmbeddedPostgres(server.data_dir, version=version))
    return None


def drain(url: str) -> None:
    """Consumes what is left, retries included."""
    random = chaos.Calm()
    with connect(url) as db:
        time.sleep(chaos.LEASE_SECONDS)
        waiting = 1
        while waiting:
            value(db, "select pgque.maint_retry_events()")
            value(db, "select pgque.force_next_tick('q')")
            value(db, "select pgque.ticker()")
            for _ in range(10):
                with chaos.losing_quietly():
                    chaos.consume_leased(db, random, "drain")
                with chaos.losing_quietly():
                    chaos.consume_plain(db, random, "drain")
            waiting = value(
                db,
                "select (select count(*) from pgque.retry_queue) + sum(pending_events)"
                " from pgque.get_consumer_info()",
            )


def books(db: Connection, consumer: str) -> tuple[int, int, int]:
    """How many events were lost, doubled, or processed though nobody sent them."""
    sql = """
    select count(*) filter (where s.payload is null), count(*) filter (where s.times > 1),
           count(*) filter (where l.payload is null)
    from ledger l
    full join (select payload, count(*) times from sink where consumer = %s group by 1) s
        using (payload)
    """
    ((lost, doubled, invented),) = rows(db, sql, consumer)
    return lost, doubled, invented


def run(seconds: float) -> None:
    seed = secrets.randbelow(2**31)
    random = Random(seed)
    with new_server() as server, ExitStack() as stack:
        url = server.url
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(INSTALL_SQL.read_bytes())
            db.execute(f"{chaos.BOOKS} create table stop ()".encode())
            make_queue(
                db,
                consumers=("leased", "plain"),
                rotation_period="50 milliseconds",
                ticker_max_lag="10 milliseconds",
                max_retries="1000000",
            )
        with workers(url, seed) as running:
            cut = disturb(url, random, seconds / 2)
            crash(server, stack)
            cut += disturb(url, random, seconds / 2)
            with connect(url) as db:
                db.execute("insert into stop default values")
            codes = [process.wait(timeout=30) for process in running]
        drain(url)
        with connect(url) as db:
            sent = value(db, "select count(*) from ledger")
            print(f"seed {seed}: {sent} events, {cut} connections cut, one crash")
            assert codes == [0] * len(codes)
            assert {name: books(db, name) for name in ("leased", "plain")} == {
                "leased": (0, 0, 0),
                "plain": (0, 0, 0),
            }
            assert sent > 50 * seconds
            assert cut > seconds


def test_each_committed_event_is_processed_once() -> None:
    run(seconds=20)


@pytest.mark.slow
def test_each_committed_event_is_processed_once_for_minutes() -> None:
    run(seconds=240)
