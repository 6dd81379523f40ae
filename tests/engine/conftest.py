"""What the engine's tests work on."""

import pytest

from tests.support.queues.sessions import background, db, empty_url
from tests.support.queues.sql import Connection

__all__ = ["background", "db", "empty_url"]


@pytest.fixture
def q(db: Connection) -> Connection:
    """The test's connection, to a database with the queue q and its consumer c."""
    db.make_queue()
    return db


@pytest.fixture
def bare(db: Connection) -> Connection:
    """The same, and the queue has no consumer."""
    db.make_queue(consumers=())
    return db
