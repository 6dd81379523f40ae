"""Opens connections. Errors about a connection string never repeat the string."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from typing import Any, TypeVar

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import PipelineStatus, TransactionStatus

from .errors import ConnectionFailed, UnsupportedServer, translated
from .operation import finished, settled, within

T = TypeVar("T")
BaseConnection = psycopg.Connection[T] | psycopg.AsyncConnection[T]

_CONNECT_SECONDS = 10
_OLDEST_SERVER = 140000


def connect(url: str) -> psycopg.Connection[tuple[Any, ...]]:
    """Opens a connection in autocommit mode, with settings that make all values readable.

    Args:
        url: a libpq connection string or URI. PG* environment variables supply what it omits.

    Raises:
        ConnectionFailed: if the string is malformed, or the server is unreachable or refuses.
        UnsupportedServer: if it is older than PostgreSQL 14.
    """
    return finished(open_connection(url, psycopg.Connection))


async def open_connection(url: str, connections: Any) -> Any:
    """Opens a connection as `connect` does, of the given class of psycopg."""
    try:
        with translated():
            connection = await settled(connections.connect(checked(url), autocommit=True))
    except OSError as error:  # psycopg opens one more descriptor, to wait.
        raise ConnectionFailed(f"this process cannot connect: {error}") from error
    try:
        _check_version(connection)
        with translated():
            await apply_settings(connection)
            cursor = await settled(connection.execute("select pg_backend_pid()"))
            # A transaction pooler may run a statement that another client prepared under this name.
            # Such poolers report their own process id.
            if await settled(cursor.fetchone()) != (connection.info.backend_pid,):
                connection.prepare_threshold = None
    except BaseException:
        await settled(connection.close())
        raise
    return connection


def url_of(connection: BaseConnection[Any]) -> str:
    """Returns the connection string of a connection, with its password."""
    info = connection.info
    password = {"password": info.password} if info.password else {}
    return make_conninfo(**info.get_parameters(), **password)


async def apply_settings(connection: BaseConnection[Any]) -> None:
    """Sets the date and interval styles that the client can read, unless they are set.

    These are statements because poolers refuse such settings in the connection string. The server
    reports the settings, so the check costs nothing when they have the usual values.
    """
    reported = connection.info.parameter_status
    if not (reported("DateStyle") or "").startswith("ISO"):
        await settled(connection.execute("set datestyle to iso"))
    if reported("IntervalStyle") != "postgres":
        await settled(connection.execute("set intervalstyle to postgres"))


def is_in_pipeline(connection: BaseConnection[Any]) -> bool:
    """Returns whether the connection is in pipeline mode, where results come after a sync."""
    return connection.info.pipeline_status != PipelineStatus.OFF


def inner_pipeline(connection: BaseConnection[Any]) -> AbstractAsyncContextManager[Any]:
    """Yields the pipeline, and syncs before and after the block; None outside pipeline mode."""
    return within(connection.pipeline() if is_in_pipeline(connection) else nullcontext())


@asynccontextmanager
async def in_utf8(connection: BaseConnection[Any]) -> AsyncIterator[None]:
    """Sets UTF-8 for the block, if the owner of the connection has another encoding.

    With another encoding, texts would arrive as bytes or not at all.
    """

    async def use(encoding: str) -> None:
        async with inner_pipeline(connection):
            # Inside a transaction, a setting made for the session or by SET LOCAL stays.
            is_open = connection.info.transaction_status != TransactionStatus.IDLE
            is_local = is_open or not connection.autocommit
            setting = sql.SQL("set {} client_encoding to {}").format(
                sql.SQL("local" if is_local else "session"), encoding
            )
            await settled(connection.execute(setting))

    async with inner_pipeline(connection):
        pass  # Entering it reads the results of what the owner sent, such as another encoding.
    with translated():
        encoding = connection.info.parameter_status("client_encoding") or "UTF8"
        if encoding != "UTF8":
            await use("UTF8")
    try:
        yield
    finally:
        if encoding != "UTF8":
            # If the transaction has failed, its rollback restores the encoding.
            with suppress(psycopg.Error):
                await use(encoding)


def _check_version(connection: BaseConnection[Any]) -> None:
    version = connection.info.server_version
    if version < _OLDEST_SERVER:
        raise UnsupportedServer(
            f"pgque needs PostgreSQL 14 or newer, this server is {version // 10000}",
            "Upgrade the server, or connect to another one.",
        )


def checked(url: str) -> str:
    """Returns a connection string with the settings that all connections of this package use.

    Raises:
        ConnectionFailed: if the URL is malformed.
    """
    given = parsed(url)
    if given is None:
        # The cause is not chained: libpq's message repeats parts of the string, even the password.
        raise ConnectionFailed(
            "the database URL is not valid",
            "It looks like postgresql://user@host:5432/database, or host=... dbname=...",
        )
    if "@" in str(given.get("host", "")):
        raise ConnectionFailed(
            "the database URL is not valid: it has more than one @",
            "In a user name or password, write %40 for @.",
        )
    # The encoding of the server, role, PGCLIENTENCODING or URL may lack some characters.
    fixed = {**given, "client_encoding": "UTF8"}
    return make_conninfo(url, **{"connect_timeout": _CONNECT_SECONDS, **fixed})


def parsed(url: str) -> dict[str, Any] | None:
    """Returns the parts of a URL by libpq keyword; None if the URL is invalid."""
    try:
        return dict(conninfo_to_dict(url))
    except psycopg.ProgrammingError:
        return None
