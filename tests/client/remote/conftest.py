"""A queue in one database, and other databases to apply its events in."""

from collections.abc import Iterator

import psycopg
import pytest

from pgque_dagster.client import Client
from tests.conftest import Server, execute
from tests.support.databases import empty_database
from tests.support.queues import Connection, connect, make_queue

DONE = "create table done (nr serial, id text)"


@pytest.fixture
def db(database_url: str) -> Iterator[Connection]:
    with connect(database_url) as connection:
        make_queue(connection)
        yield connection


@pytest.fixture
def client(database_url: str, db: Connection) -> Iterator[Client]:
    with Client(database_url) as client:
        yield client


@pytest.fixture
def target_url(server: Server) -> Iterator[str]:
    """A database without the queue, with a table for what was done."""
    with empty_database(server) as url:
        with connect(url) as target:
            target.execute(DONE)
        yield url


@pytest.fixture
def target(target_url: str) -> Iterator[Connection]:
    with connect(target_url) as connection:
        yield connection


@pytest.fixture
def other_url(
    server: Server, template_database: str, administration: psycopg.Connection
) -> Iterator[str]:
    """Another database with the queue installed."""
    name = "other_queues"
    execute(administration, f"create database {name} template {template_database}")
    yield server.database_url(name)
    execute(administration, f"drop database {name} with (force)")


@pytest.fixture
def other(other_url: str) -> Iterator[Connection]:
    with connect(other_url) as connection:
        yield connection
