"""Sessions are ended or cancelled, the server crashes, halves rotate: each consumer still gets each
message once, and entries in order.
"""

import secrets
import time
from random import Random
from typing import Any

import pytest

from tests.addons.conftest import addon_sql
from tests.conftest import INSTALL_SQL, administer, new_server
from tests.support.addons import message_chaos, serial_chaos
from tests.support.addons.chaos import Workers
from tests.support.queues.sql import PATIENCE_SECONDS, connect

VICTIMS = "select pid from pg_stat_activity where application_name ~ '^chaos'"

each_scenario = pytest.mark.parametrize(
    "scenario", [message_chaos, serial_chaos], ids=lambda it: it.ADDON
)


def disturb(url: str, workers: Workers, random: Random, cuts: int) -> None:
    """Ends or cancels sessions at random `cuts` times, then waits for new rows in the sink."""
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
            assert time.monotonic() < deadline, "no new rows arrive in the sink"
            time.sleep(0.05)


def run_scenario(scenario: Any, cuts: int) -> None:
    """Disturbs the workers and crashes the server; compares what arrived with what was sent."""
    seed = secrets.randbelow(2**31)
    print(f"seed {seed}")
    random = Random(seed)
    with new_server() as server:
        url = server.url
        administer(server, "create database sink")
        sink = server.database_url("sink")
        with connect(url) as db, connect(sink) as outside:
            db.execute(INSTALL_SQL.read_bytes())
            db.execute(addon_sql(scenario.ADDON))
            scenario.prepare(db)
            outside.execute(scenario.SINK)
        workers = Workers(scenario, url, sink, random)
        with workers.working():
            disturb(url, workers, random, cuts // 2)
            server.crash()
            disturb(url, workers, random, cuts // 2)
        with connect(url) as db, connect(sink) as outside:
            scenario.drain(db, sink)
            scenario.check_results(db, outside.rows("select id, payload from sink order by id"))


@each_scenario
def test_each_committed_message_counts_once(scenario: Any) -> None:
    run_scenario(scenario, cuts=8)


@pytest.mark.slow
@each_scenario
def test_each_committed_message_counts_once_for_minutes(scenario: Any) -> None:
    run_scenario(scenario, cuts=400)
