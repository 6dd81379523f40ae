"""A driver that is stopped past its lease and goes on changes nothing of what was acked."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Client
from pgque_dagster.spark import ParquetSink, SparkBatch
from tests.support.events import claim, publish
from tests.support.pausing_driver import POINTS, numbers, store

ROOT = Path(__file__).parents[3]
PATIENCE_SECONDS = 600
EVENTS = 400
# Each starts a Spark of its own, so only two of them run each time.
ALWAYS = ("between two files", "before it is published")


@pytest.mark.parametrize(
    "point",
    [point if point in ALWAYS else pytest.param(point, marks=pytest.mark.slow) for point in POINTS],
)
def test_a_driver_stopped_past_its_lease_leaves_what_the_next_attempt_acked(
    client: Client, spark: SparkSession, tmp_path: Path, point: str
) -> None:
    folder = tmp_path / "table"
    publish(client, [{"number": number} for number in range(EVENTS)])
    fail_after_storing(client, spark, folder)

    log = tmp_path / "log"
    with stopped_driver(client.url, folder, point, log) as driver:
        wait_until(lambda: not lease_is_live(client))
        store(spark, client.url, str(folder))
        os.killpg(driver.pid, signal.SIGCONT)
        driver.wait(PATIENCE_SECONDS)

    told = log.read_text()
    assert driver.returncode == 1
    assert "LeaseLost" in told or "BatchNotOpen" in told
    assert by_spark(spark, folder) == list(range(EVENTS))
    assert by_arrow(folder) == list(range(EVENTS))
    assert client.next_batch("orders", "revenue") is None


def fail_after_storing(client: Client, spark: SparkSession, folder: Path) -> None:
    """An attempt of which something is there that does not count."""
    claimed = claim(client)
    batch = SparkBatch(spark, claimed, client.url)
    ParquetSink(folder).write(batch, numbers(batch).where("number < 100"))
    claimed.release()


@contextmanager
def stopped_driver(
    url: str, folder: Path, point: str, log: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """A driver that has stopped at the point; killed at the end, if it still runs."""
    command = (sys.executable, "-m", "tests.support.pausing_driver", url, str(folder), point)
    with log.open("wb") as stderr:
        driver = subprocess.Popen(command, cwd=ROOT, stderr=stderr, start_new_session=True)
    try:
        wait_until(lambda: is_stopped(driver, log))
        yield driver
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()


def is_stopped(driver: "subprocess.Popen[bytes]", log: Path) -> bool:
    assert driver.poll() is None, f"the driver ended: {log.read_text()}"
    return Path(f"/proc/{driver.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def lease_is_live(client: Client) -> bool:
    lease = client.lease_info("orders", "revenue")
    return lease is not None and lease.is_live


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def by_spark(spark: SparkSession, folder: Path) -> list[int]:
    return sorted(row.number for row in spark.read.parquet(str(folder)).collect())


def by_arrow(folder: Path) -> list[int]:
    table = ds.dataset(folder, format="parquet", partitioning="hive").to_table()
    return sorted(table["number"].to_pylist())
