"""Fixtures: a connection to the test's database, and threads, closed when the test ends."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.queues import Connection, connect


@pytest.fixture
def db(database_url: str) -> Iterator[Connection]:
    with connect(database_url) as connection:
        yield connection


@pytest.fixture
def background(db: Connection) -> Iterator[ThreadPoolExecutor]:
    """Threads for calls that wait for another session. They end before the connections close."""
    with ThreadPoolExecutor() as pool:
        yield pool
