"""One connection to the database, its transactions, and the calls that go over it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import psycopg

from .calls.call import Call
from .connection import connect
from .errors import PgqueError, translated
from .rights import asking

T = TypeVar("T")


class Session:
    """A connection that runs calls. `Client` adds the operations of the queue.

    Each call is a transaction of its own, unless it stands in a `transaction()` block. A session
    may be shared by threads; their calls follow one another.

    Args:
        url: a libpq connection string or URI; what it leaves out comes from the PG* environment.

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
        """Closes the connection; an unfinished transaction is rolled back."""
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """Makes what happens inside one transaction, committed at the end or rolled back.

        Yields:
            The connection, for statements of the caller's own: results written on it and a batch
            acked inside stand or fall together. What they raise comes out as it is.
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
        """Sends one call and reads its answer."""
        with asking(self._connection, call.sql):
            return call.parse(self._connection.execute(call.sql, call.params).fetchall())
