"""What most tests of postgremq work on."""

import pytest

from tests.support.addons.messages import make_queue
from tests.support.queues.sql import Connection


@pytest.fixture
def q(db: Connection) -> Connection:
    """The test's connection, to a database with the queue q of the topic t."""
    make_queue(db)
    return db
