"""One connection to the database, or a pool: transactions and calls, plain or asynchronous."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Self, TypeVar

import psycopg
from psycopg import capabilities
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from .connection import in_utf8, inner_pipeline, is_in_pipeline, open_connection, url_of
from .cursors import AsyncCursor, Cursor
from .errors import ConnectionFailed, InvalidArgument, PgqueError, QueueNotFound, translated
from .operation import (
    AsyncFace,
    Call,
    Copy,
    Face,
    Finished,
    Hook,
    Row,
    Steps,
    finished,
    settled,
    within,
)
from .queues import LOOKS
from .rights import error_with_role, translated_with_role

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool, ConnectionPool

T = TypeVar("T")
Connection = psycopg.Connection[Any]
AsyncConnection = psycopg.AsyncConnection[Any]


@dataclass(eq=False)
class _Block:
    """A `transaction()` block: its connection, or None when the block is over."""

    connection: Any


# By session. Calls in a block use its connection, as do tasks that the block starts. Other threads
# and tasks wait for the block, or use another connection of a pool, so none of their calls becomes
# part of a foreign transaction. The same holds for tasks that outlive the block.
_BLOCKS: ContextVar[dict[int, _Block] | None] = ContextVar("pgque_blocks", default=None)


class _Sessions:
    """The coroutines behind both faces. The coroutines of a `Session` never wait."""

    _connections: Any
    _cursors: Any

    def __init__(self, database: Any, lock: Any) -> None:
        self._pool: Any = None
        self._connection: Any = None
        self._is_own = isinstance(database, str)
        self._is_closed = False
        self._url = database if self._is_own else ""
        self._lock = lock
        self._copying: set[Any] = set()
        if isinstance(database, self._connections):
            self._connection = database
        elif hasattr(database, "getconn"):
            self._pool = database
        elif not self._is_own:
            kind = self._connections.__name__
            raise InvalidArgument(
                f"a {type(database).__name__} is not a URL, connection or pool",
                f"Pass a URL, a psycopg.{kind} or a psycopg_pool.{kind}Pool; docs/client.md shows "
                "connections of SQLAlchemy and Django.",
            )

    @property
    def session(self) -> Any:
        """The session itself, which runs its operations."""
        return self

    @property
    def in_transaction(self) -> bool:
        """Whether calls are part of an open transaction, or of one that the caller ends."""
        connection = self._in_block() or self._connection
        return connection is not None and (_is_open(connection) or not connection.autocommit)

    @property
    def holds_callers_transaction(self) -> bool:
        """Whether the caller still has to commit on a given connection without autocommit."""
        connection = self._connection
        return connection is not None and not connection.autocommit and _is_open(connection)

    async def _open(self) -> None:
        if self._is_own and self._connection is None:
            self._connection = await open_connection(self._url, self._connections)

    async def _close(self) -> None:
        if self._is_own and self._connection is not None:
            self._is_closed = True
            await settled(self._connection.close())

    async def _find_url(self) -> str:
        if self._is_own:
            return str(self._url)
        async with self._borrowed() as connection:
            return url_of(connection)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Any]:
        callers: psycopg.Error | None = None
        try:
            with translated():
                async with self._borrowed() as connection, in_utf8(connection):
                    is_callers = connection is self._connection and not connection.autocommit
                    if is_callers and not _is_open(connection):
                        await settled(connection.execute("select 1"))
                    # The commit is outside: calls of tasks meanwhile are not in the transaction.
                    async with within(connection.transaction()):
                        with self._block(connection):
                            try:
                                yield connection
                            except psycopg.Error as error:
                                callers = error
                                raise
        except PgqueError as error:
            if callers is not None and error.__cause__ is callers:
                raise callers from callers.__cause__
            raise

    async def _do(self, work: Call[T] | Steps[T]) -> T:
        try:
            return await self._try(work)
        except QueueNotFound as error:
            raise (await self._explained(error)) from error.__cause__

    async def _try(self, work: Call[T] | Steps[T]) -> T:
        if isinstance(work, Call):
            async with self._borrowed() as connection, in_utf8(connection):
                return await self._call(connection, work)
        async with self._transaction() as connection:
            result = None
            while True:
                try:
                    step = work.send(result)
                except StopIteration as done:
                    return done.value  # type: ignore[no-any-return]
                result = await self._step(connection, step)

    async def _step(self, connection: Any, step: Call[Any] | Copy | Hook) -> Any:
        if isinstance(step, Call):
            return await self._call(connection, step)
        if isinstance(step, Hook):
            return await settled(step.function(connection))
        if is_in_pipeline(connection):
            raise InvalidArgument(
                "the connection is in pipeline mode, which has no COPY",
                "Call copy_events outside the block with connection.pipeline(), or use send_batch.",
            )
        self._copying.add(connection)
        try:
            with translated_with_role(connection, step.sql):
                cursor = self._cursors(connection)
                async with within(cursor.copy(step.sql.encode())) as copy:
                    for row in step.rows:
                        # Instead of `settled`, whose check takes as long as a row.
                        written = copy.write_row(row)
                        if written is not None:
                            await written
        finally:
            self._copying.discard(connection)
        return cursor.rowcount

    async def _call(self, connection: Any, call: Call[T]) -> T:
        cursor = self._cursors(connection, row_factory=tuple_row)
        # Entering it raises errors of what the caller sent before.
        async with inner_pipeline(connection) as pipeline:
            try:
                await settled(cursor.execute(call.sql, call.params, binary=True))
                if pipeline is not None:
                    await settled(pipeline.sync())
                rows = await settled(cursor.fetchall()) if cursor.description is not None else []
                return call.parse(rows)
            except (psycopg.Error, UnicodeEncodeError) as error:
                raise error_with_role(connection, call.sql, error) from error

    async def _explained(self, error: QueueNotFound) -> QueueNotFound:
        """Adds what is known about an unknown name to the error, unless the transaction failed."""
        for look in () if self.in_transaction else LOOKS:
            with suppress(PgqueError):
                error = await self._try(look(error))
        return error

    def _in_block(self) -> Any:
        """Returns the connection of the block that this thread or task is in, or None."""
        block = (_BLOCKS.get() or {}).get(id(self))
        return block.connection if block else None

    @contextmanager
    def _block(self, connection: Any) -> Iterator[None]:
        if self._in_block() is connection:
            # An inner block: the outer one continues when it ends.
            yield
            return
        block = _Block(connection)
        _BLOCKS.set({**(_BLOCKS.get() or {}), id(self): block})
        try:
            yield
        finally:
            # Tasks that the block started have copies of the context; this tells them it is over.
            block.connection = None
            # Not with a token, because a generator may leave the block in another context.
            others = {key: other for key, other in (_BLOCKS.get() or {}).items() if other != block}
            _BLOCKS.set(others)

    @asynccontextmanager
    async def _borrowed(self) -> AsyncIterator[Any]:
        """Lends the connection of the block that this thread or task is in, or waits for one."""
        own = self._in_block()
        if own is not None:
            if own in self._copying:
                raise InvalidArgument(
                    "the client is busy with copy_events",
                    "Use another client for its iterator and for tasks of its transaction.",
                )
            yield own
        elif self._is_closed:
            raise ConnectionFailed("this client was closed", "Use it within its `with` block.")
        elif self._pool is not None:
            with translated():
                async with within(self._pool.connection()) as connection:
                    yield connection
        elif self._connection is None:
            raise InvalidArgument(
                "the client is not connected",
                "Use `async with AsyncClient(url) as client`, or await client.open().",
            )
        else:
            async with within(self._lock):
                if self._is_own and self._connection.closed:
                    self._connection = await open_connection(self._url, self._connections)
                connection = self._connection
                try:
                    yield connection
                finally:
                    # A cancelled call may leave a statement behind; its transaction stays open.
                    if _is_left_active(connection):
                        await connection.close()


class Session(_Sessions, Face):
    """A connection, or a pool, that runs calls. `Client` adds the operations of the queue."""

    _connections = psycopg.Connection
    _cursors = Cursor

    def __init__(self, database: "str | Connection | ConnectionPool[Any]") -> None:
        super().__init__(database, threading.Lock())
        finished(self._open())

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Closes the connection, if the client opened it."""
        self.close()

    @property
    def url(self) -> str:
        """The connection string, with its password."""
        return finished(self._find_url())

    @property
    def user(self) -> str:
        """The role that the connection logged in as."""
        with Finished(self._borrowed()) as connection:
            return str(connection.info.user)

    @property
    def database(self) -> str:
        """The database's name."""
        with Finished(self._borrowed()) as connection:
            return str(connection.info.dbname)

    def close(self) -> None:
        """Closes the connection and rolls back an open transaction.

        A connection or pool that the caller passed in stays open.
        """
        finished(self._close())

    def transaction(self) -> AbstractContextManager[Connection]:
        """Runs the block in one transaction: commits at its end, rolls back if it raises.

        Inside an open transaction, it is a savepoint. So on a given connection that is not in
        autocommit mode, the caller commits. Other threads that share the client wait for the end of
        the block.

        The block gets the connection, for the caller's own statements. They commit together with a
        batch acked inside the block. psycopg errors of these statements are raised unchanged.
        """
        return Finished(self._transaction())

    def run(self, work: Call[T] | Steps[T]) -> T:
        """Runs one call, or several steps in one transaction; returns the parsed result."""
        return finished(self._do(work))

    def pages(self, call: Call[Any], size: int) -> Iterator[list[Row]]:
        """Yields the rows of a call as the server sends them, in portions of the given size."""
        with Finished(self._borrowed()) as connection, Finished(in_utf8(connection)):
            cursor = Cursor(connection, row_factory=tuple_row)
            try:
                chunk = size if capabilities.has_stream_chunked() else 1
                rows = cursor.stream(call.sql, call.params, binary=True, size=chunk)
                while page := list(islice(rows, size)):
                    yield page
            except psycopg.Error as error:
                raise error_with_role(connection, call.sql, error) from error


class AsyncSession(_Sessions, AsyncFace):
    """A connection, or a pool, that runs calls. `AsyncClient` adds the operations of the queue."""

    _connections = psycopg.AsyncConnection
    _cursors = AsyncCursor

    def __init__(self, database: "str | AsyncConnection | AsyncConnectionPool[Any]") -> None:
        super().__init__(database, asyncio.Lock())

    async def __aenter__(self) -> Self:
        """Connects, and returns itself."""
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        """Closes the connection, if the client opened it."""
        await self.close()

    async def open(self) -> Self:
        """Connects, unless it has a connection or a pool; returns itself.

        Raises:
            ConnectionFailed: if the server cannot be reached or refuses the connection.
            UnsupportedServer: if it is older than PostgreSQL 14.
        """
        await self._open()
        return self

    async def close(self) -> None:
        """Closes the connection, as `Session.close` does."""
        await self._close()

    async def find_url(self) -> str:
        """Returns the connection string, with its password."""
        return await self._find_url()

    def transaction(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """Runs the block in one transaction, as `Session.transaction` does.

        Other tasks that share the client wait until the block ends. Tasks that the block starts are
        part of the transaction until then.
        """
        return self._transaction()

    async def run(self, work: Call[T] | Steps[T]) -> T:
        """Runs one call, or several steps in one transaction; returns the parsed result."""
        return await self._do(work)


def _is_open(connection: Connection | AsyncConnection) -> bool:
    status = connection.info.transaction_status
    return status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)


def _is_left_active(connection: Connection | AsyncConnection) -> bool:
    is_active = connection.info.transaction_status == TransactionStatus.ACTIVE
    # In pipeline mode, the connection is active with what its owner sent.
    is_left = is_active and not is_in_pipeline(connection)
    return is_left and isinstance(connection, psycopg.AsyncConnection)
