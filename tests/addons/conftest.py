"""A fresh database with the queue and an add-on: the one that the test's folder is named after."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from typing import Any

import psycopg
import pytest

from pgque_dagster.embedded import EmbeddedPostgres
from tests.conftest import INSTALL_SQL, Server, execute, server_version
from tests.support.debian import DebianPostgres
from tests.support.queues import Connection, connect

Another = Callable[[], Connection]
Blocked = Callable[..., Future[Any]]

_numbers = count(1)


def addon_sql(addon: str) -> bytes:
    """The file that installs an add-on."""
    return INSTALL_SQL.with_name(f"pgque_{addon}.sql").read_bytes()


@pytest.fixture(scope="session")
def addon_templates(
    server: Server, template_database: str, administration: psycopg.Connection
) -> Callable[[str], str]:
    """Makes the name of a database with the queue and an add-on, to make copies of."""
    made: dict[str, str] = {}

    def template(addon: str) -> str:
        if addon not in made:
            name = f"template_{addon}"
            execute(administration, f"create database {name} template {template_database}")
            with connect(server.database_url(name)) as connection:
                connection.execute(addon_sql(addon))
            made[addon] = name
        return made[addon]

    return template


@pytest.fixture
def database_url(
    request: pytest.FixtureRequest,
    server: Server,
    addon_templates: Callable[[str], str],
    administration: psycopg.Connection,
) -> Iterator[str]:
    """URL of a fresh database with the queue and the add-on of the folder."""
    name = f"with_addon_{next(_numbers)}"
    template = addon_templates(request.path.parent.name)
    execute(administration, f"create database {name} template {template} strategy file_copy")
    yield server.database_url(name)
    execute(administration, f"drop database {name} with (force)")


@pytest.fixture
def another(database_url: str) -> Iterator[Another]:
    """Opens one more connection to the test's database."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(connect(database_url))


@pytest.fixture
def db(another: Another) -> Connection:
    return another()


@pytest.fixture
def blocked(another: Another) -> Iterator[Blocked]:
    """Calls a function with a session of its own, and returns when this waits for a lock."""
    watcher = another()
    with ThreadPoolExecutor() as pool:  # ends before the connections close

        def call(function: Callable[..., Any], *arguments: object) -> Future[Any]:
            session = another()
            future = pool.submit(function, session, *arguments)
            watcher.wait_until_blocked(session)
            return future

        yield call


def begun(db: Connection, level: str = "read committed") -> Connection:
    """Begins a transaction. If its level keeps a snapshot, it is taken now."""
    db.execute(f"begin isolation level {level}".encode())
    db.value("select count(*) from pg_class")
    return db


def with_snapshot(db: Connection) -> Connection:
    return begun(db, "repeatable read")


def crash(server: EmbeddedPostgres | DebianPostgres, stack: ExitStack) -> None:
    """The server dies without a word, and comes back."""
    if isinstance(server, DebianPostgres):
        return server.crash()
    os.kill(server.pid, signal.SIGKILL)
    stack.enter_context(EmbeddedPostgres(server.data_dir, version=server_version()))
    return None
