"""A fresh database with the queue and an add-on: the one that the test's folder is named after."""

from collections.abc import Callable, Iterator
from functools import cache

import pytest

from tests.conftest import INSTALL_SQL, NewDatabase, install
from tests.support.queues.sessions import db
from tests.support.queues.sessions import empty_url as url
from tests.support.queues.sql import Connection, connect

__all__ = ["db", "url"]


def addon_sql(addon: str) -> bytes:
    """The file that installs an add-on."""
    return INSTALL_SQL.with_name(f"pgque_{addon}.sql").read_bytes()


@cache
def install_addon(addon: str) -> Callable[[str], None]:
    """Returns the function that installs an add-on in a database."""

    def install_it(url: str) -> None:
        with connect(url) as db:
            db.execute(addon_sql(addon))

    return install_it


@pytest.fixture
def database_url(request: pytest.FixtureRequest, new_database: NewDatabase) -> Iterator[str]:
    """URL of a fresh database with the queue and the add-on of the folder."""
    with new_database(install, install_addon(request.path.parent.name)) as url:
        yield url


def begun(db: Connection, level: str = "read committed") -> Connection:
    """Begins a transaction. If its level keeps a snapshot, it is taken now."""
    return db.hold_snapshot(level)
