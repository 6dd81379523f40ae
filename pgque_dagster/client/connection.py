"""Opens connections. Errors about a connection string never repeat the string."""

from collections.abc import Iterator
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from .errors import ConnectionFailed, UnsupportedServer, translated

T = TypeVar("T")
BaseConnection = psycopg.Connection[T] | psycopg.AsyncConnection[T]

_CONNECT_SECONDS = 10
_OLDEST_SERVER = 140000
_BACKEND = "select pg_backend_pid()"


def connect(url: str) -> psycopg.Connection[tuple[Any, ...]]:
    """Opens a connection in autocommit mode, with settings under which all values can be read.

    Args:
        url: a libpq connection string or URI. PG* environment variables supply what it omits.

    Raises:
        ConnectionFailed: if the string is malformed, or the server is unreachable or refuses.
        UnsupportedServer: if it is older than PostgreSQL 14.
    """
    with translated():
        connection = psycopg.connect(_checked(url), autocommit=True)
    try:
        _check_version(connection)
        with translated():
            apply_settings(connection)
            backend = connection.execute(_BACKEND).fetchone()
        _prepare_nothing_behind_a_pooler(connection, backend)
    except BaseException:
        connection.close()
        raise
    return connection


async def connect_async(url: str) -> psycopg.AsyncConnection[tuple[Any, ...]]:
    """Opens a connection for asyncio as `connect` does, with the same errors."""
    with translated():
        connection = await psycopg.AsyncConnection.connect(_checked(url), autocommit=True)
    try:
        _check_version(connection)
        with translated():
            for statement in _needed_settings(connection):
                await connection.execute(statement)
            backend = await (await connection.execute(_BACKEND)).fetchone()
        _prepare_nothing_behind_a_pooler(connection, backend)
    except BaseException:
        await connection.close()
        raise
    return connection


def closed() -> ConnectionFailed:
    """Returns the error for a client that is used after it was closed."""
    return ConnectionFailed("this client was closed", "Use it within its `with` block.")


def url_of(connection: BaseConnection[Any]) -> str:
    """Returns the connection string of a connection, with its password."""
    info = connection.info
    password = {"password": info.password} if info.password else {}
    return make_conninfo(**info.get_parameters(), **password)


def apply_settings(connection: psycopg.Connection[Any]) -> None:
    """Sets the encoding and the styles of dates and intervals that can be read, if others are set.

    These are statements because poolers refuse such settings in the connection string. The server
    reports the settings, so it costs nothing where they are the usual ones.
    """
    for statement in _needed_settings(connection):
        connection.execute(statement)


def _needed_settings(connection: BaseConnection[Any]) -> Iterator[LiteralString]:
    # psycopg would return bytes. It is the default in databases with that encoding.
    if connection.info.parameter_status("client_encoding") == "SQL_ASCII":
        yield "set client_encoding to utf8"
    if not (connection.info.parameter_status("DateStyle") or "").startswith("ISO"):
        yield "set datestyle to iso"
    if connection.info.parameter_status("IntervalStyle") != "postgres":
        yield "set intervalstyle to postgres"


def _prepare_nothing_behind_a_pooler(
    connection: BaseConnection[Any], backend: tuple[Any, ...] | None
) -> None:
    # A pooler of transactions may run a statement that another client prepared under this name.
    # Poolers tell clients a process id of their own.
    if backend != (connection.info.backend_pid,):
        connection.prepare_threshold = None


def _check_version(connection: BaseConnection[Any]) -> None:
    version = connection.info.server_version
    if version < _OLDEST_SERVER:
        raise UnsupportedServer(
            f"pgque needs PostgreSQL 14 or newer, this server is {version // 10000}",
            "Upgrade the server, or connect to another one.",
        )


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
