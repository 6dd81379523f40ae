"""A client on a fresh database, and one more connection to look behind it."""

from collections.abc import Iterator

import pytest

from pgque_dagster.client import Client
from tests.support.queues import Connection, connect


@pytest.fixture
def client(database_url: str) -> Iterator[Client]:
    with Client(database_url) as client:
        yield client


@pytest.fixture
def db(database_url: str) -> Iterator[Connection]:
    with connect(database_url) as connection:
        yield connection
