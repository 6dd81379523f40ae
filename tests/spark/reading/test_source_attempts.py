"""A slice whose first attempt died midway counts once."""

import os
import subprocess
import sys
import time

import psycopg
import pytest

from pgque_dagster.client import Client
from tests.support.events import claim, tick

_KILL_READERS = (
    "select pg_terminate_backend(pid) from pg_stat_activity"
    " where datname = current_database() and state = 'active'"
    " and query like '%ctid >=%' and pid <> pg_backend_pid()"
)


@pytest.mark.slow
def test_a_task_whose_connection_is_killed_midway_is_repeated_without_a_double(
    client: Client, database_url: str
) -> None:
    # More than fits between server and reader, so that the server waits for the reader.
    batches = [client.send_batch("orders", ["x" * 10_000] * 1000) for _ in range(10)]
    tick(client)
    arguments = ("local[2,4]", database_url, str(claim(client).batch_id))
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.reading_driver", *arguments],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            kill_the_first_reader(database_url)
            output, _ = process.communicate(timeout=600)
        finally:
            process.kill()

    told = {line.split()[0]: list(map(int, line.split()[1:])) for line in output.splitlines()}
    assert max(told["attempts"]) == 1
    assert told["ids"] == [number for ids in batches for number in ids]


def kill_the_first_reader(url: str) -> None:
    deadline = time.monotonic() + 300
    with psycopg.connect(url, autocommit=True) as connection:
        while not connection.execute(_KILL_READERS.encode()).fetchone():
            assert time.monotonic() < deadline, "nobody reads"
            time.sleep(0.05)
