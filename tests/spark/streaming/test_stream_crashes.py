"""A driver killed in the middle of a micro-batch: after a restart every event is stored once."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Client
from tests.support.events import make_queue, tick
from tests.support.stream_driver import HANGS, store
from tests.support.streams import Stream, needs_limits


@contextmanager
def driver(url: str, folder: Path, *hang: str) -> Iterator[subprocess.Popen[str]]:
    """A Spark driver in processes of its own, killed with all of them at the end."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.support.stream_driver", url),
            *(str(folder / "checkpoint"), str(folder / "target"), *hang),
        ],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=(folder / "driver.log").open("a"),
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def wait_until_it_hangs(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert HANGS in iter(lambda: process.stdout.readline().strip(), ""), "the driver died early"


def send(client: Client, count: int) -> list[int]:
    ids = client.send_batch("orders", ["x"] * count)
    tick(client)
    return ids


def stored(spark: SparkSession, folder: Path) -> list[int]:
    rows = spark.read.parquet(f"{folder}/target/*").select("ev_id").collect()
    return sorted(row.ev_id for row in rows)


def drain(spark: SparkSession, url: str, folder: Path, max_events: str = "100") -> None:
    stream = Stream(spark, url, folder / "checkpoint", max_events=max_events)
    stream.drain(partial(store, str(folder / "target"), None))


@needs_limits
@pytest.mark.parametrize("moment", [pytest.param("before", marks=pytest.mark.slow), "after"])
def test_a_driver_killed_around_storing_leaves_each_event_once(
    database_url: str, spark: SparkSession, tmp_path: Path, moment: str
) -> None:
    with Client(database_url) as client:
        make_queue(client)
        ids = send(client, 50) + send(client, 40) + send(client, 60)
        with driver(database_url, tmp_path, moment) as process:
            wait_until_it_hangs(process)
        ids += send(client, 30)

        drain(spark, database_url, tmp_path)

    assert stored(spark, tmp_path) == ids


@needs_limits
@pytest.mark.slow
def test_a_driver_killed_again_and_again_leaves_each_event_once(
    database_url: str, spark: SparkSession, tmp_path: Path
) -> None:
    random.seed(7)
    ids = []
    with Client(database_url) as client:
        make_queue(client)
        for _ in range(5):
            with driver(database_url, tmp_path):
                end = time.monotonic() + random.uniform(12, 25)
                while time.monotonic() < end:
                    ids += send(client, random.randrange(1, 80))
                    client.maint()
                    time.sleep(0.05)

        # What killed drivers left is tens of thousands of events: not in hundreds of micro-batches.
        drain(spark, database_url, tmp_path, max_events="10000")

    assert stored(spark, tmp_path) == ids
