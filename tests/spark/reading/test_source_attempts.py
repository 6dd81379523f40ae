"""A slice whose first attempt died midway counts once."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from pgque_dagster.client import Client
from tests.support.events import claim, tick

_KILL_READERS = (
    "select pg_terminate_backend(pid) from pg_stat_activity"
    " where datname = current_database() and state = 'active'"
    " and query like '%ctid >=%' and pid <> pg_backend_pid()"
)


@contextmanager
def driver(master: str, url: str, batch_id: int) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.reading_driver", master, url, str(batch_id)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ids_read(process: subprocess.Popen[str]) -> list[int]:
    """Returns what the driver read, after some slice took a second attempt."""
    output, _ = process.communicate(timeout=600)
    told = {line.split()[0]: list(map(int, line.split()[1:])) for line in output.splitlines()}
    assert max(told["attempts"]) == 1
    return told["ids"]


def kill_the_first_reader(url: str) -> None:
    deadline = time.monotonic() + 300
    with psycopg.connect(url, autocommit=True) as connection:
        while time.monotonic() < deadline:
            if connection.execute(_KILL_READERS.encode()).fetchone():
                return
            time.sleep(0.05)
    raise AssertionError("nobody reads")


def large_batch(client: Client) -> list[int]:
    """More than fits between server and reader, so that the server waits for the reader."""
    ids = [
        number for _ in range(10) for number in client.send_batch("orders", ["x" * 10_000] * 1000)
    ]
    tick(client)
    return ids


@pytest.mark.slow
def test_a_task_whose_connection_is_killed_midway_is_repeated_without_a_double(
    client: Client, database_url: str
) -> None:
    ids = large_batch(client)
    with driver("local[2,4]", database_url, claim(client).batch_id) as process:
        kill_the_first_reader(database_url)

        assert ids_read(process) == ids
