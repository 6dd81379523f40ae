"""A driver that is stopped past its lease and goes on adds nothing to what was acked."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Client
from tests.conftest import Server
from tests.spark.sinks.test_sinks_pauses import (
    PATIENCE_SECONDS,
    ROOT,
    is_stopped,
    lease_is_live,
    wait_until,
)
from tests.support.databases import empty_database
from tests.support.events import publish
from tests.support.pausing_sink_driver import HOLDING_LOCKS, POINTS, store
from tests.support.queues import connect, rows, value
from tests.support.sink_driver import BALANCE

EVENTS = 30
# Each starts a Spark of its own, so only one of them runs each time.
ALWAYS = "behind the merge in the ack"


@pytest.fixture
def elsewhere(server: Server) -> Iterator[str]:
    with empty_database(server) as url:
        yield url


@pytest.mark.parametrize(
    "point",
    [point if point == ALWAYS else pytest.param(point, marks=pytest.mark.slow) for point in POINTS],
)
def test_a_driver_stopped_past_its_lease_adds_nothing_to_what_the_next_attempt_acked(
    client: Client, spark: SparkSession, elsewhere: str, tmp_path: Path, point: str
) -> None:
    oracle: Counter[str] = Counter()
    for url in (client.url, elsewhere):
        with connect(url) as db:
            db.execute(BALANCE.encode())
    for number in range(EVENTS):
        oracle[f"account {number % 3}"] += number
    publish(
        client,
        [{"account": f"account {number % 3}", "amount": number} for number in range(EVENTS)],
    )

    with (
        stopped_driver(client.url, elsewhere, tmp_path, point) as driver,
        ThreadPoolExecutor(1) as threads,
    ):
        wait_until(lambda: not lease_is_live(client))
        attempt = threads.submit(store, spark, client.url, elsewhere)
        if point in HOLDING_LOCKS:
            where = client.url if point == ALWAYS else elsewhere
            wait_until(lambda: attempt.done() or somebody_waits(where))
            assert not attempt.done(), outcome(attempt)
        else:
            attempt.result(PATIENCE_SECONDS)
        os.killpg(driver.pid, signal.SIGCONT)
        attempt.result(PATIENCE_SECONDS)
        driver.wait(PATIENCE_SECONDS)

    told = (tmp_path / "log").read_text()
    assert driver.returncode == 1
    assert any(reason in told for reason in ("LeaseLost", "BatchNotOpen", "StagingLost"))
    assert balances(client.url) == oracle
    assert balances(elsewhere) == oracle
    assert client.next_batch("orders", "revenue") is None


@contextmanager
def stopped_driver(
    url: str, elsewhere: str, folder: Path, point: str
) -> Iterator["subprocess.Popen[bytes]"]:
    """A driver that has stopped at the point; killed at the end, if it still runs."""
    command = (sys.executable, "-m", "tests.support.pausing_sink_driver")
    log = folder / "log"
    with log.open("wb") as stderr:
        driver = subprocess.Popen(
            (*command, url, elsewhere, str(folder), point),
            cwd=ROOT,
            stderr=stderr,
            start_new_session=True,
        )
    try:
        wait_until(lambda: is_stopped(driver, log))
        yield driver
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()


def somebody_waits(url: str) -> bool:
    """Whether a transaction of the database waits for another to end."""
    with connect(url) as db:
        return bool(
            value(
                db,
                "select count(*) > 0 from pg_locks l join pg_stat_activity a using (pid)"
                " where not l.granted and a.datname = current_database()",
            )
        )


def outcome(attempt: "Future[None]") -> str:
    return f"the attempt waited for nobody: {attempt.exception()}"


def balances(url: str) -> Counter[str]:
    with connect(url) as db:
        return Counter(dict(rows(db, "select account, amount::int from balance")))
