"""Fixtures: a connection to the test's database, threads, and another database."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.queues.sql import Connection, connect
from tests.support.servers.databases import empty_database


@pytest.fixture
def db(database_url: str) -> Iterator[Connection]:
    with connect(database_url) as connection:
        yield connection


@pytest.fixture
def background(db: Connection) -> Iterator[ThreadPoolExecutor]:
    """Threads for calls that wait for another session. They end before the connections close."""
    with ThreadPoolExecutor() as pool:
        yield pool


@pytest.fixture
def empty_url(server: Any) -> Iterator[str]:
    """The URL of a database with nothing in it."""
    with empty_database(server) as url:
        yield url
