"""A fresh database with the queue and an add-on: the one that the test's folder is named after."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count

import psycopg
import pytest

from tests.conftest import INSTALL_SQL, Server, execute
from tests.support.queues import Connection, connect

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
def another(database_url: str) -> Iterator[Callable[[], Connection]]:
    """Opens one more connection to the test's database."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(connect(database_url))


@pytest.fixture
def db(another: Callable[[], Connection]) -> Connection:
    return another()


@pytest.fixture
def background(another: Callable[[], Connection]) -> Iterator[ThreadPoolExecutor]:
    """Threads for calls that wait for another session. They end before the connections close."""
    with ThreadPoolExecutor() as pool:
        yield pool
