"""A database with one of everything in it, and users of one role each."""

from collections.abc import Iterator

import pytest

from tests.conftest import NewDatabase, Server, administer
from tests.support.queues.catalog import populate
from tests.support.queues.sql import Connection, connect

USERS = ("reader", "writer", "admin")


@pytest.fixture(scope="package")
def populated_url(server: Server, new_database: NewDatabase) -> Iterator[str]:
    """The URL of the database. Tests roll back what they change."""
    with new_database() as url:
        administer(server, "create role t_stranger")
        for name in USERS:
            administer(server, f"create role t_{name} in role pgque_{name}")
        with connect(url) as db:
            populate(db)
        yield url
    administer(server, "drop role t_stranger, t_reader, t_writer, t_admin")


@pytest.fixture(scope="module")
def clean(populated_url: str) -> Iterator[Connection]:
    """A connection to ask with, never under attack."""
    with connect(populated_url) as db:
        yield db


@pytest.fixture
def db(populated_url: str) -> Iterator[Connection]:
    """A connection in a transaction that is rolled back."""
    with connect(populated_url) as db, db.transaction(force_rollback=True):
        yield db
