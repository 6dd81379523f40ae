"""Opens connections. Errors about a connection string never repeat the string."""

from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from .errors import ConnectionFailed, UnsupportedServer, translated

_CONNECT_SECONDS = 10
_OLDEST_SERVER = 140000


def connect(url: str) -> psycopg.Connection[tuple[Any, ...]]:
    """Opens a connection in autocommit mode, with styles of dates and intervals that can be read.

    Args:
        url: a libpq connection string or URI. PG* environment variables supply what it omits.

    Raises:
        ConnectionFailed: if the string is malformed, or the server is unreachable or refuses.
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
    try:
        with translated():
            set_styles(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def set_styles(connection: psycopg.Connection[Any]) -> None:
    """Sets the styles of dates and intervals that psycopg reads, if the database has others.

    This is a statement because poolers refuse such settings in the connection string. The server
    reports both settings, so it costs nothing where they are PostgreSQL's defaults.
    """
    if not (connection.info.parameter_status("DateStyle") or "").startswith("ISO"):
        connection.execute("set datestyle to iso")
    if connection.info.parameter_status("IntervalStyle") != "postgres":
        connection.execute("set intervalstyle to postgres")


def _checked(url: str) -> str:
    given = parsed(url)
    if given is None:
        # No cause is chained: libpq's message repeats parts of the string, possibly the password.
        raise ConnectionFailed(
            "the database URL is not valid",
            "It looks like postgresql://user@host:5432/database, or host=... dbname=...",
        )
    if "@" in str(given.get("host", "")):
        raise ConnectionFailed(
            "the database URL is not valid: it has more than one @",
            "In a user name or password, write %40 for @.",
        )
    return make_conninfo(url, **{"connect_timeout": _CONNECT_SECONDS, **given})


def parsed(url: str) -> dict[str, Any] | None:
    """Returns the parts of a URL by libpq keyword; None if the URL is invalid."""
    try:
        return dict(conninfo_to_dict(url))
    except psycopg.ProgrammingError:
        return None
