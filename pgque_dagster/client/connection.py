"""Opens connections, and says what is wrong with a connection string without repeating it."""

from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from .errors import ConnectionFailed, UnsupportedServer, translated

_CONNECT_SECONDS = 10
_OLDEST_SERVER = 140000


def connect(url: str) -> psycopg.Connection[tuple[Any, ...]]:
    """Opens a connection in autocommit mode.

    Args:
        url: a libpq connection string or URI; what it leaves out comes from the PG* environment.

    Raises:
        ConnectionFailed: if the string is malformed, or the server cannot be reached or refuses.
        UnsupportedServer: if it is older than PostgreSQL 14.
    """
    with translated():
        connection = psycopg.connect(_checked(url), autocommit=True)
    version = connection.info.server_version
    if version < _OLDEST_SERVER:
        connection.close()
        raise UnsupportedServer(
            f"pgque needs PostgreSQL 14 or newer, this server is {version // 10000}",
            "Upgrade the server, or connect to another one.",
        )
    return connection


def _checked(url: str) -> str:
    given = parsed(url)
    if given is None:
        # Without a cause: libpq's message repeats what is misspelt, and that may be the password.
        raise ConnectionFailed(
            "the database URL is not valid",
            "It looks like postgresql://user@host:5432/database, or host=... dbname=...",
        )
    if "@" in str(given.get("host", "")):
        raise ConnectionFailed(
            "the database URL is not valid: it has more than one @",
            "Write %40 for one in a user name or a password.",
        )
    return make_conninfo(url, **{"connect_timeout": _CONNECT_SECONDS, **given})


def parsed(url: str) -> dict[str, Any] | None:
    """Returns a URL's parts by their libpq names; None if it is not valid."""
    try:
        return dict(conninfo_to_dict(url))
    except psycopg.ProgrammingError:
        return None
