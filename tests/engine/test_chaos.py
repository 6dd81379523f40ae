"""Many processes at once, connections cut and the server killed: the books balance all the same."""

import os
import secrets
import signal
import time
from contextlib import ExitStack
from random import Random

import psycopg
import pytest

from pgque_dagster.embedded import EmbeddedPostgres
from tests.conftest import INSTALL_SQL, new_server, server_version
from tests.support import crowd
from tests.support.debian import DebianPostgres
from tests.support.queues import PATIENCE_SECONDS, connect, rows, value

EVENTS_A_CUT = 15


def disturb(url: str, random: Random, cuts: int) -> int:
    """Cuts so many connections, one after the other, while events are sent; returns how many."""
    cut = 0
    deadline = time.monotonic() + PATIENCE_SECONDS + cuts
    with connect(url) as db:
        enough = value(db, "select count(*) from ledger") + cuts * EVENTS_A_CUT
        while cut < cuts or value(db, "select count(*) from ledger") < enough:
            assert time.monotonic() < deadline, f"{cut} connections cut"
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


def run(cuts: int) -> None:
    seed = secrets.randbelow(2**31)
    random = Random(seed)
    with new_server() as server, ExitStack() as stack:
        url = server.url
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(INSTALL_SQL.read_bytes())
            crowd.prepare(db)
        with crowd.workers(url, seed) as running:
            cut = disturb(url, random, cuts // 2)
            crash(server, stack)
            cut += disturb(url, random, cuts // 2)
            codes = crowd.send_home(url, running)
        crowd.drain(url)
        with connect(url) as db:
            sent = value(db, "select count(*) from ledger")
            print(f"seed {seed}: {sent} events, {cut} connections cut, one crash")
            assert codes == [0] * len(codes)
            assert crowd.books(db) == crowd.BALANCED


def test_each_committed_event_is_processed_once() -> None:
    run(cuts=60)


@pytest.mark.slow
def test_each_committed_event_is_processed_once_for_minutes() -> None:
    run(cuts=1000)
