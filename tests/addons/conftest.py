"""A fresh database with the queue and an add-on: the one that the test's folder is named after."""

from collections.abc import Callable, Iterator
from itertools import count

import psycopg
import pytest

from tests.conftest import INSTALL_SQL, Server, execute
from tests.support.queues.sessions import db
from tests.support.queues.sessions import empty_url as url
from tests.support.queues.sql import Connection, connect

__all__ = ["db", "url"]

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


def begun(db: Connection, level: str = "read committed") -> Connection:
    """Begins a transaction. If its level keeps a snapshot, it is taken now."""
    return db.hold_snapshot(level)
