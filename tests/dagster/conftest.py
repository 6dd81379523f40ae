"""Fixtures of the tests that evaluate definitions against a real queue."""

from collections.abc import Callable, Iterator

import dagster as dg
import psycopg
import pytest

from pgque_dagster.client import Client
from tests.support.events import make_queue


@pytest.fixture
def client(database_url: str) -> Iterator[Client]:
    """A client of a database with the queue orders and its consumer revenue."""
    with Client(database_url) as client:
        make_queue(client)
        yield client


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def sql(database_url: str) -> Iterator[Callable[[str], None]]:
    """Changes what only time would change."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield lambda statement: connection.execute(statement.encode()) and None
