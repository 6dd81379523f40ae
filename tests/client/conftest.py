"""A client on a fresh database, one more connection to look behind it, and a queue."""

from collections.abc import Iterator

import pytest

from pgque_dagster.client import Client
from pgque_dagster.client.consumer import consumer as consumers
from tests.client.consumer.support import DONE, Queue
from tests.support.queues.sessions import db
from tests.support.queues.sql import Connection

__all__ = ["db"]


@pytest.fixture(autouse=True)
def consumers_stop_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "_STEP", 0.02)


@pytest.fixture
def client(database_url: str) -> Iterator[Client]:
    with Client(database_url) as client:
        yield client


@pytest.fixture
def q(client: Client, db: Connection) -> Queue:
    """The queue q with the consumer c."""
    db.make_queue()
    db.execute(DONE)
    return Queue(client, db)
