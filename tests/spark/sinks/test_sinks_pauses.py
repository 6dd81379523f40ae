"""A driver that is killed, or stopped past its lease and continued: every event counts once."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, Signals
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Client
from pgque_dagster.spark import SparkBatch
from tests.conftest import Server
from tests.programs.publishing import (
    BETWEEN_RENAMES,
    MERGED,
    MERGED_ELSEWHERE,
    POINTS,
    POSTGRES_POINTS,
    numbers,
    store,
)
from tests.programs.signals import go_on, has_ended, signalled
from tests.support.queues.events import claim, publish
from tests.support.queues.sql import connect, rows
from tests.support.runner.waiting import PATIENCE_SECONDS, wait_until
from tests.support.servers.databases import empty_database
from tests.support.spark.balances import somebody_waits
from tests.support.spark.stored_tables import TABLES

EVENTS = 400
WHILE_ANOTHER_WRITES = "while the later attempt writes"
# Each starts a Spark of its own.
pytestmark = pytest.mark.slow
BALANCE = "create table balance (account text primary key, amount bigint not null)"


def cases(*kinds: str) -> Iterator[Any]:
    """Yields the kind of table, the signal and the point."""
    for kind in kinds:
        points = (*POINTS, WHILE_ANOTHER_WRITES) if kind in TABLES else POSTGRES_POINTS
        for point in (*points, BETWEEN_RENAMES) if kind == "parquet" else points:
            for signal in (SIGSTOP, SIGKILL):
                yield pytest.param(kind, signal, point, id=f"{kind}, {signal.name} {point}")


@pytest.mark.parametrize(("kind", "signal", "point"), list(cases(*TABLES)))
def test_every_event_is_stored_once_when_a_driver_gets_a_signal(
    client: Client,
    spark: SparkSession,
    tmp_path: Path,
    location: str,
    kind: str,
    signal: Signals,
    point: str,
) -> None:
    publish(client, [{"number": number} for number in range(EVENTS)])
    # An attempt of which something is there that does not count.
    failed = SparkBatch(spark, claim(client), client.url)
    TABLES[kind].write(failed, numbers(failed).where("number < 100"), location)
    failed.claim.release()

    log = tmp_path / "log"
    sent, at = (
        (SIGSTOP, "after the lease is renewed")
        if point == WHILE_ANOTHER_WRITES
        else (signal, point)
    )
    arguments = (client.url, kind, location, sent.name, at)
    with signalled("publishing", *arguments, log=log) as pid:
        wait_until(lambda: not lease_is_live(client))
        if point == WHILE_ANOTHER_WRITES:
            # It is stopped when it may publish, and ends while the later attempt writes.
            going_on = SIGKILL if signal == SIGKILL else SIGCONT
            store(spark, client.url, kind, location, ending(pid, going_on))
        else:
            store(spark, client.url, kind, location)
            go_on(pid, SIGCONT)
        wait_until(lambda: has_ended(pid))

    if signal == SIGSTOP and point != "after the ack":
        assert was_refused(log)
    acked_by = pid if point == "after the ack" else os.getpid()
    assert TABLES[kind].rows(location) == [(number, acked_by) for number in range(EVENTS)]
    assert client.next_batch("orders", "revenue") is None


@pytest.mark.parametrize(("kind", "signal", "point"), list(cases("postgres")))
def test_every_event_is_added_up_once_when_a_driver_gets_a_signal(
    client: Client,
    server: Server,
    spark: SparkSession,
    tmp_path: Path,
    kind: str,
    signal: Signals,
    point: str,
) -> None:
    oracle: Counter[str] = Counter()
    for number in range(30):
        oracle[f"account {number % 3}"] += number
    publish(
        client, [{"account": f"account {number % 3}", "amount": number} for number in range(30)]
    )
    log = tmp_path / "log"
    with empty_database(server) as elsewhere, ThreadPoolExecutor(1) as threads:
        for url in (client.url, elsewhere):
            with connect(url) as db:
                db.execute(BALANCE.encode())

        arguments = (client.url, kind, elsewhere, signal.name, point)
        with signalled("publishing", *arguments, log=log) as pid:
            wait_until(lambda: not lease_is_live(client))
            attempt = threads.submit(store, spark, client.url, kind, elsewhere)
            if signal == SIGSTOP and point in (MERGED, MERGED_ELSEWHERE):
                # It holds locks on the rows, and the next attempt's merge waits for it.
                where = client.url if point == MERGED else elsewhere
                wait_until(lambda: attempt.done() or somebody_waits(where))
                assert not attempt.done(), "the attempt waited for nobody"
            else:
                attempt.result(PATIENCE_SECONDS)
            go_on(pid, SIGCONT)
            is_new = attempt.result(PATIENCE_SECONDS)
            wait_until(lambda: has_ended(pid))

        assert is_new == (point != "after the ack")
        if signal == SIGSTOP and is_new:
            assert was_refused(log)
        for url in (client.url, elsewhere):
            with connect(url) as db:
                assert dict(rows(db, "select account, amount::int from balance")) == oracle
                if signal == SIGKILL:
                    assert rows(db, "select 1 from pg_class where relname ~ '^pgque_stage_'") == []
    assert client.next_batch("orders", "revenue") is None


def ending(pid: int, signal: Signals) -> Callable[[str], None]:
    """Has a driver end between two files of another one's write."""

    def at(point: str) -> None:
        if point == "between two files":
            go_on(pid, signal)
            wait_until(lambda: has_ended(pid))

    return at


def was_refused(log: Path) -> bool:
    told = log.read_text()
    return any(reason in told for reason in ("LeaseLost", "BatchNotOpen", "StagingLost"))


def lease_is_live(client: Client) -> bool:
    lease = client.lease_info("orders", "revenue")
    return lease is not None and lease.is_live
