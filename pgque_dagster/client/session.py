"""One connection to the database, or a pool: its transactions and its calls."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Self, TypeVar

import psycopg
from psycopg import capabilities
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from .calls.call import Call, Copy, Hook, Row, Steps
from .connection import apply_settings, closed, connect, url_of
from .errors import InvalidArgument, PgqueError, QueueNotFound, translated
from .held import Held
from .near_names import LOOKS
from .operation import Face
from .rights import error_with_role, translated_with_role

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

T = TypeVar("T")
Connection = psycopg.Connection[Any]


class Session(Face):
    """A connection, or a pool, that runs calls. `Client` adds the operations of the queue."""

    def __init__(self, database: "str | Connection | ConnectionPool[Any]") -> None:
        self._pool: ConnectionPool[Any] | None = None
        self._connection: Connection | None = None
        self._is_own = isinstance(database, str)
        self._is_closed = False
        self._url = ""
        self._lock = threading.Lock()
        self._copying: set[Connection] = set()
        self._held = Held[Connection]()
        if isinstance(database, str):
            self._url = database
            self._connection = connect(database)
        elif isinstance(database, psycopg.Connection):
            self._connection = database
        elif hasattr(database, "getconn"):
            self._pool = database
        else:
            raise InvalidArgument(
                f"a {type(database).__name__} is no URL, connection or pool",
                "Pass a URL, a psycopg.Connection or a psycopg_pool.ConnectionPool; "
                "docs/client.md shows those of SQLAlchemy and Django.",
            )

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Closes the connection, if it is the client's own."""
        self.close()

    @property
    def url(self) -> str:
        """The connection string, with its password."""
        if self._is_own:
            return self._url
        with self._borrowed() as connection:
            return url_of(connection)

    @property
    def user(self) -> str:
        """The role that the connection logged in as."""
        with self._borrowed() as connection:
            return connection.info.user

    @property
    def database(self) -> str:
        """The database's name."""
        with self._borrowed() as connection:
            return connection.info.dbname

    @property
    def in_transaction(self) -> bool:
        """Whether calls are part of a transaction that is already open."""
        connection = self._held.get() or self._connection
        return connection is not None and _is_open(connection)

    @property
    def holds_callers_transaction(self) -> bool:
        """Whether the caller of a given connection without autocommit has yet to commit."""
        connection = self._connection
        return connection is not None and not connection.autocommit and _is_open(connection)

    def close(self) -> None:
        """Closes the connection and rolls back an open transaction.

        A given connection or pool stays as it is.
        """
        if self._is_own and self._connection is not None:
            self._is_closed = True
            self._connection.close()

    def reset(self) -> None:
        """Resets the settings of the connection, such as those of a previous user."""
        with self._borrowed() as connection, translated():
            connection.execute("reset all")
            apply_settings(connection)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Runs the block in one transaction: commits at its end, rolls back if it raises.

        Within a transaction that is already open, it is a savepoint. So on a given connection that
        is not in autocommit mode, the caller commits. Other threads that share the client wait for
        the block's end.

        Yields:
            The connection, for the caller's own statements. They commit together with a batch
            acked inside the block. psycopg errors of these statements are raised unchanged.
        """
        callers: psycopg.Error | None = None
        try:
            with translated(), self._borrowed() as connection:
                if not self._is_own and not connection.autocommit and not _is_open(connection):
                    connection.execute("select 1")
                with connection.transaction(), self._held.hold(connection):
                    try:
                        yield connection
                    except psycopg.Error as error:
                        callers = error
                        raise
        except PgqueError as error:
            if callers is not None and error.__cause__ is callers:
                raise callers from callers.__cause__
            raise

    def run(self, work: Call[T] | Steps[T]) -> T:
        """Runs one call, or several steps in one transaction; returns the parsed result."""
        try:
            return self._run(work)
        except QueueNotFound as error:
            raise self._explained(error) from error.__cause__

    def pages(self, call: Call[Any], size: int) -> Iterator[list[Row]]:
        """Yields the rows of a call, so many at a time, as the server sends them."""
        with self._borrowed() as connection:
            cursor = psycopg.Cursor(connection, row_factory=tuple_row)
            try:
                chunk = size if capabilities.has_stream_chunked() else 1
                rows = cursor.stream(call.sql, call.params, size=chunk)
                while page := list(islice(rows, size)):
                    yield page
            except (psycopg.Error, NotImplementedError) as error:
                raise error_with_role(connection, call.sql, error) from error

    def _run(self, work: Call[T] | Steps[T]) -> T:
        if isinstance(work, Call):
            with self._borrowed() as connection:
                return self._call(connection, work)
        with self.transaction() as connection:
            result = None
            while True:
                try:
                    step = work.send(result)
                except StopIteration as done:
                    return done.value  # type: ignore[no-any-return]
                result = self._step(connection, step)

    def _step(self, connection: Connection, step: Call[Any] | Copy | Hook) -> Any:
        if isinstance(step, Call):
            return self._call(connection, step)
        if isinstance(step, Hook):
            return step.function(connection)
        self._copying.add(connection)
        try:
            with (
                translated_with_role(connection, step.sql),
                psycopg.Cursor(connection).copy(step.sql.encode()) as copy,
            ):
                for block in step.blocks:
                    copy.write(block)
        finally:
            self._copying.discard(connection)
        return None

    def _call(self, connection: Connection, call: Call[T]) -> T:
        if call.around is not None:
            with call.around():
                return self._call(connection, replace(call, around=None))
        # The cursors of a given connection may return other rows than tuples.
        cursor = psycopg.Cursor(connection, row_factory=tuple_row)
        try:
            cursor.execute(call.sql, call.params)
            return call.parse(cursor.fetchall())
        except (psycopg.Error, UnicodeEncodeError, NotImplementedError) as error:
            raise error_with_role(connection, call.sql, error) from error

    def _explained(self, error: QueueNotFound) -> QueueNotFound:
        """Returns the error with what is found about the name, unless the transaction failed."""
        for look in () if self.in_transaction else LOOKS:
            with suppress(PgqueError):
                error = self._run(look(error))
        return error

    @contextmanager
    def _borrowed(self) -> Iterator[Connection]:
        """Lends the connection that this thread holds, or waits for one."""
        held = self._held.get()
        if held is not None:
            if held in self._copying:
                raise InvalidArgument(
                    "the client is busy with copy_events",
                    "Have its iterator, and tasks of its transaction, use another client.",
                )
            yield held
        elif self._is_closed:
            raise closed()
        elif self._connection is not None:
            with self._lock:
                if self._is_own and self._connection.closed:
                    self._connection = connect(self._url)
                yield self._connection
        else:
            assert self._pool is not None
            with translated(), self._pool.connection() as connection:
                yield connection


def _is_open(connection: Connection) -> bool:
    status = connection.info.transaction_status
    return status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)
