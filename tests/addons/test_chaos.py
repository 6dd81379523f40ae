"""Sessions end and are cancelled, the server dies, halves rotate: each message, and each entry in
its order, counts once for each consumer.
"""

import secrets
import time
from contextlib import ExitStack
from random import Random
from typing import Any

import pytest

from tests.addons.conftest import addon_sql, crash
from tests.conftest import INSTALL_SQL, administer, new_server
from tests.support import message_chaos, serial_chaos
from tests.support.chaos import Workers
from tests.support.queues import PATIENCE_SECONDS, connect

VICTIMS = "select pid from pg_stat_activity where application_name ~ '^chaos'"

each_play = pytest.mark.parametrize("play", [message_chaos, serial_chaos], ids=lambda it: it.ADDON)


def disturb(url: str, workers: Workers, random: Random, cuts: int) -> None:
    """Disturbs so many times, one after the other, and lets the sink fill."""
    with connect(url) as db:
        stored = db.value("select count(*) from sink")
        for _ in range(cuts):
            if victims := db.rows(VICTIMS):
                how = random.choice(("terminate", "terminate", "cancel"))
                db.value(f"select pg_{how}_backend(%s)", *random.choice(victims))
            time.sleep(random.uniform(0, 0.2))
        before, deadline = -1, 0.0
        while (now := db.value("select count(*) from sink")) < stored + 10 * cuts:
            workers.check()
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
        with workers.working():
            disturb(url, workers, random, cuts // 2)
            crash(server, stack)
            disturb(url, workers, random, cuts // 2)
        with connect(url) as db, connect(sink) as outside:
            play.drain(db, sink)
            play.check_books(db, outside.rows("select id, payload from sink order by id"))


@each_play
def test_each_committed_message_counts_once(play: Any) -> None:
    perform(play, cuts=8)


@pytest.mark.slow
@each_play
def test_each_committed_message_counts_once_for_minutes(play: Any) -> None:
    perform(play, cuts=400)
