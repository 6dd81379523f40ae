"""A client on a fresh database, one more connection to look behind it, and a queue."""

from collections.abc import Iterator

import pytest

from pgque_dagster.client import Client
from pgque_dagster.client.consumer import consumer as consumers
from tests.client.consumer.support import DONE, Queue
from tests.conftest import NewDatabase, install
from tests.support.queues.sessions import db
from tests.support.queues.sql import Connection, connect

__all__ = ["db"]


@pytest.fixture(autouse=True)
def consumers_stop_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "_STEP", 0.02)


@pytest.fixture
def client(database_url: str) -> Iterator[Client]:
    with Client(database_url) as client:
        yield client


def c_of_q(url: str) -> None:
    with connect(url) as db:
        db.make_queue()
        db.execute(DONE)


@pytest.fixture
def database_url(request: pytest.FixtureRequest, new_database: NewDatabase) -> Iterator[str]:
    """A fresh database, with the queue of `q` if the test has that."""
    with new_database(install, *([c_of_q] if "q" in request.fixturenames else [])) as url:
        yield url


@pytest.fixture
def q(client: Client, db: Connection) -> Queue:
    """The queue q with the consumer c."""
    # As if the template was made just now.
    db.execute("update pgque.tick_log set tick_time = now()")
    db.execute("update pgque.position_log set sub_active = now()")
    return Queue(client, db)
