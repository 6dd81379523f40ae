"""A database with a queue, and what tests look at."""

from collections.abc import Iterator

import pytest

from pgque_dagster.client import Client
from tests.client.consumer.support import Queue
from tests.support.queues import Connection, connect, make_queue


@pytest.fixture
def db(database_url: str) -> Iterator[Connection]:
    with connect(database_url) as connection:
        make_queue(connection)
        connection.execute("create table done (id text)")
        yield connection


@pytest.fixture
def client(database_url: str, db: Connection) -> Iterator[Client]:
    with Client(database_url) as client:
        yield client


@pytest.fixture
def q(client: Client, db: Connection) -> Queue:
    return Queue(client, db)
