"""A driver that is killed, or stopped past its lease and continued: every event is stored once."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, Signals
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Client
from pgque_dagster.spark import SparkBatch
from tests.support.events import claim, publish
from tests.support.publishing_driver import BETWEEN_RENAMES, POINTS, numbers, store
from tests.support.s3 import S3
from tests.support.stored_tables import TABLES

ROOT = Path(__file__).parents[3]
PATIENCE_SECONDS = 600
EVENTS = 400
# Each starts a Spark of its own, so only these run each time.
ALWAYS = {
    ("parquet", SIGSTOP, "after the lease is renewed"),
    ("parquet", SIGSTOP, "while the later attempt writes"),
    ("parquet", SIGKILL, "between publishing and ack"),
    ("parquet on s3", SIGSTOP, "after the lease is renewed"),
    ("delta", SIGSTOP, "after the lease is renewed"),
    ("iceberg", SIGSTOP, "after the lease is renewed"),
}
POINTS_OF = {"parquet": (BETWEEN_RENAMES,)}


def cases() -> Iterator[Any]:
    """Yields the kind of table, the signal and the point."""
    for kind in TABLES:
        for point in (*POINTS, *POINTS_OF.get(kind, ()), "while the later attempt writes"):
            for signal in (SIGSTOP, SIGKILL):
                marks = [] if (kind, signal, point) in ALWAYS else [pytest.mark.slow]
                name = f"{kind}, {signal.name} {point}"
                yield pytest.param(kind, signal, point, marks=marks, id=name)


@pytest.mark.parametrize(("kind", "signal", "point"), list(cases()))
def test_every_event_is_stored_once_when_a_driver_gets_a_signal(
    client: Client,
    spark: SparkSession,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    signal: Signals,
    point: str,
) -> None:
    location = str(tmp_path / "table")
    if TABLES[kind].is_on_s3:
        s3: S3 = request.getfixturevalue("s3")
        location = s3.url(uuid.uuid4().hex)
        for name, value in s3.options.items():
            monkeypatch.setenv(name.upper(), value)
    publish(client, [{"number": number} for number in range(EVENTS)])
    fail_after_storing(client, spark, kind, location)

    log = tmp_path / "log"
    with driver(client.url, kind, location, signal, point, log) as pid:
        wait_until(lambda: not lease_is_live(client))
        if point == "while the later attempt writes":
            # It is stopped when it may publish, and ends while the later attempt writes.
            going_on = SIGKILL if signal == SIGKILL else SIGCONT
            store(spark, client.url, kind, location, ending(pid, going_on))
        else:
            store(spark, client.url, kind, location)
            go_on(pid, SIGCONT)
        wait_until(lambda: has_ended(pid))

    told = log.read_text()
    if signal == SIGSTOP and point != "after the ack":
        assert "LeaseLost" in told or "BatchNotOpen" in told
    acked_by = pid if point == "after the ack" else os.getpid()
    assert TABLES[kind].rows(location) == [(number, acked_by) for number in range(EVENTS)]
    assert client.next_batch("orders", "revenue") is None


def fail_after_storing(client: Client, spark: SparkSession, kind: str, location: str) -> None:
    """An attempt of which something is there that does not count."""
    claimed = claim(client)
    batch = SparkBatch(spark, claimed, client.url)
    TABLES[kind].write(batch, numbers(batch).where("number < 100"), location)
    claimed.release()


@contextmanager
def driver(
    url: str, kind: str, location: str, signal: Signals, point: str, log: Path
) -> Iterator[int]:
    """A driver that got the signal at the point; killed at the end, if it still runs."""
    if point == "while the later attempt writes":
        signal, point = SIGSTOP, "after the lease is renewed"
    command = [sys.executable, "-m", "tests.support.publishing_driver", url, kind, location]
    command += [signal.name, point, f"{log}.signalled"]
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, cwd=ROOT, stderr=stderr, start_new_session=True)
    try:
        wait_until(lambda: is_stopped(process, log))
        yield process.pid
    finally:
        go_on(process.pid, SIGKILL)
        process.wait()


def is_stopped(process: "subprocess.Popen[bytes]", log: Path) -> bool:
    """Says whether a driver got its signal, be it to stop or to end."""
    state = state_of(process.pid)
    ended_by_itself = process.poll() not in (None, -SIGKILL)
    assert not ended_by_itself, f"the driver ended: {log.read_text()}"
    return state in "TZ"


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


def has_ended(pid: int) -> bool:
    return state_of(pid) == "Z"


def go_on(pid: int, signal: Signals) -> None:
    """Sends a signal to a driver's process group, unless nothing is left of it."""
    try:
        os.killpg(pid, signal)
    except ProcessLookupError:
        return


def ending(pid: int, signal: Signals) -> Callable[[str], None]:
    """Has a driver end between two files of another one's write."""

    def at(point: str) -> None:
        if point == "between two files":
            go_on(pid, signal)
            wait_until(partial(has_ended, pid))

    return at


def lease_is_live(client: Client) -> bool:
    lease = client.lease_info("orders", "revenue")
    return lease is not None and lease.is_live


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)
