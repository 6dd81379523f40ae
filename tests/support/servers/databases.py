"""Databases of a test's own, besides the one that has the queue installed."""

import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tests.support.queues.sql import connect

_numbers = itertools.count(1)


@contextmanager
def empty_database(server: Any) -> Iterator[str]:
    """URL of a database with nothing in it."""
    name = f"empty_{next(_numbers)}"
    with connect(server.url) as db:
        db.execute(f"create database {name}".encode())
        yield server.database_url(name)
        db.execute(f"drop database {name} with (force)".encode())


class Owned(NamedTuple):
    """A database, as its owner and as a superuser reach it."""

    owner: str
    owner_url: str
    superuser_url: str


@contextmanager
def owned_database(server: Any, options: str = "createrole") -> Iterator[Owned]:
    """A database whose owner is no superuser but a role with these options."""
    name = f"owned_{next(_numbers)}"
    with connect(server.url) as db:
        db.execute(f"create role {name} login {options} password 'x'".encode())
        db.execute(f"create database {name} owner {name}".encode())
        url = server.database_url(name)
        yield Owned(name, as_user(url, name), url)
        db.execute(f"drop database {name} with (force)".encode())
        db.execute(f"drop owned by {name} cascade".encode())
        db.execute(f"drop role {name}".encode())


def as_user(url: str, user: str) -> str:
    """The URL with another user."""
    return re.sub("//postgres(:[^@]*)?@", f"//{user}@", url)
