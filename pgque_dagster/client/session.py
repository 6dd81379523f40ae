"""One connection to the database: its transactions and its calls."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import psycopg

from .calls.call import Call
from .connection import connect, set_styles
from .errors import PgqueError, translated
from .rights import translated_with_role

T = TypeVar("T")


class Session:
    """A connection that runs calls. `Client` adds the operations of the queue.

    Each call is its own transaction, unless it runs inside a `transaction()` block. Threads may
    share a session; it runs one call at a time.

    Args:
        url: a libpq connection string or URI. PG* environment variables supply what it omits.

    Raises:
        ConnectionFailed: if the server cannot be reached or refuses the connection.
        UnsupportedServer: if it is older than PostgreSQL 14.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection = connect(url)

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Closes the connection."""
        self.close()

    @property
    def user(self) -> str:
        """The role that the connection logged in as."""
        return self._connection.info.user

    @property
    def database(self) -> str:
        """The database's name."""
        return self._connection.info.dbname

    def close(self) -> None:
        """Closes the connection and rolls back an open transaction."""
        self._connection.close()

    def reset(self) -> None:
        """Resets the settings of the connection, such as those of a previous user."""
        with translated():
            self._connection.execute("reset all")
            set_styles(self._connection)

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """Runs the block in one transaction: commits at its end, rolls back if it raises.

        Yields:
            The connection, for the caller's own statements. They commit together with a batch
            acked inside the block. psycopg errors of these statements are raised unchanged.
        """
        callers: psycopg.Error | None = None
        try:
            with translated(), self._connection.transaction():
                try:
                    yield self._connection
                except psycopg.Error as error:
                    callers = error
                    raise
        except PgqueError as error:
            if callers is not None and error.__cause__ is callers:
                raise callers from callers.__cause__
            raise

    def run(self, call: Call[T]) -> T:
        """Runs one call and returns its parsed result."""
        with translated_with_role(self._connection, call.sql):
            return call.parse(self._connection.execute(call.sql, call.params).fetchall())
