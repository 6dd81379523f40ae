"""A queue in one database, and other databases to apply its events in."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from pgque_dagster.client import Consumer
from tests.client.consumer.support import DONE, Queue, done, run_until_error
from tests.conftest import NewDatabase, Server
from tests.programs.moving import make
from tests.support.queues.sql import Connection, connect
from tests.support.servers.databases import empty_database


class Target(NamedTuple):
    """Another database than that of the queue q."""

    url: str
    db: Connection
    q: Queue

    def consumer(self, kind: str = "batch", **options: Any) -> Consumer:
        """The consumer c, which applies events here."""
        return make(kind, self.q.url, self.url, **options)

    def apply(self, kind: str = "batch", **options: Any) -> None:
        """Runs the consumer until it has acked all."""
        self.q.run(self.consumer(kind, **options))

    def error(self, kind: str = "batch") -> BaseException:
        """Runs the consumer until it ends with an error."""
        return run_until_error(self.consumer(kind))

    def done(self) -> list[str]:
        return done(self.db)


@pytest.fixture
def target_url(server: Server) -> Iterator[str]:
    """A database without the queue, with a table for what was done."""
    with empty_database(server) as url:
        with connect(url) as target:
            target.execute(DONE)
        yield url


@pytest.fixture
def target(target_url: str, q: Queue) -> Iterator[Target]:
    with connect(target_url) as connection:
        yield Target(target_url, connection, q)


@pytest.fixture
def other_url(new_database: NewDatabase) -> Iterator[str]:
    """Another database with the schema installed."""
    with new_database() as url:
        yield url


@pytest.fixture
def other(other_url: str, q: Queue) -> Iterator[Target]:
    with connect(other_url) as connection:
        yield Target(other_url, connection, q)
