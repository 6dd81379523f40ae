"""A driver killed at any point: afterwards every event counts once, in every sink."""

import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import BatchLeased, Client
from pgque_dagster.spark.sinks import ParquetSink
from tests.conftest import Server
from tests.support.databases import empty_database
from tests.support.events import make_queue, publish
from tests.support.queues import connect, rows
from tests.support.sink_driver import BALANCE, POINTS, consume

ROOT = Path(__file__).parents[3]
PATIENCE_SECONDS = 120


def finish(spark: SparkSession, url: str, elsewhere: str, folder: str) -> int:
    """Consumes what is left, as soon as the dead driver's lease ends; returns how many batches."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    batches = 0
    while time.monotonic() < deadline:
        try:
            if not consume(spark, url, elsewhere, folder, lambda point: None):
                return batches
            batches += 1
        except BatchLeased:
            time.sleep(0.2)
    raise AssertionError("the batch stayed leased")


def balances(url: str) -> Counter[str]:
    with connect(url) as db:
        return Counter(dict(rows(db, "select account, amount::int from balance")))


def leftovers(url: str) -> list[tuple[str]]:
    with connect(url) as db:
        return rows(db, "select relname::text from pg_class where relname ~ '^pgque_stage_'")


@pytest.mark.parametrize(
    "point",
    [
        # Each starts a Spark of its own, so only one of them runs each time.
        point if point == "after the write" else pytest.param(point, marks=pytest.mark.slow)
        for point in POINTS
    ],
)
def test_each_event_counts_once_when_the_driver_is_killed(
    server: Server, database_url: str, spark: SparkSession, tmp_path: Path, point: str
) -> None:
    oracle: Counter[str] = Counter()
    with Client(database_url) as client, empty_database(server) as elsewhere:
        make_queue(client)
        for url in (database_url, elsewhere):
            with connect(url) as db:
                db.execute(BALANCE.encode())
        for number in range(20):
            oracle[f"account {number % 3}"] += number
            client.send("orders", {"account": f"account {number % 3}", "amount": number})
        publish(client, [])

        died = subprocess.run(
            [
                *(sys.executable, "-m", "tests.support.sink_driver"),
                *(database_url, elsewhere, str(tmp_path / "table"), point),
            ],
            cwd=ROOT,
            timeout=PATIENCE_SECONDS,
        )
        batches = finish(spark, database_url, elsewhere, str(tmp_path / "table"))

        assert died.returncode == -signal.SIGKILL
        assert batches == (0 if point == "after the ack" else 1)
        assert balances(database_url) == oracle
        assert balances(elsewhere) == oracle
        parquet = ParquetSink(tmp_path / "table").read(spark).groupBy("account").sum("amount")
        assert Counter({row[0]: row[1] for row in parquet.collect()}) == oracle
        assert leftovers(database_url) + leftovers(elsewhere) == []
