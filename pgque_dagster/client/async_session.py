"""One connection to the database, or a pool, for asyncio."""

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from .calls.call import Call, Copy, Hook, Steps
from .connection import closed, connect_async, url_of
from .errors import InvalidArgument, PgqueError, QueueNotFound, translated
from .held import Held
from .near_names import LOOKS
from .operation import AsyncFace
from .rights import error_with_role, translated_with_role

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool

T = TypeVar("T")
AsyncConnection = psycopg.AsyncConnection[Any]


class AsyncSession(AsyncFace):
    """A connection, or a pool, that runs calls. `AsyncClient` adds the operations of the queue."""

    def __init__(self, database: "str | AsyncConnection | AsyncConnectionPool[Any]") -> None:
        self._pool: AsyncConnectionPool[Any] | None = None
        self._connection: AsyncConnection | None = None
        self._is_own = isinstance(database, str)
        self._is_closed = False
        self._url = ""
        self._lock = asyncio.Lock()
        self._copying: set[AsyncConnection] = set()
        self._held = Held[AsyncConnection]()
        if isinstance(database, str):
            self._url = database
        elif isinstance(database, psycopg.AsyncConnection):
            self._connection = database
        elif hasattr(database, "getconn"):
            self._pool = database
        else:
            raise InvalidArgument(
                f"a {type(database).__name__} is no URL, connection or pool",
                "Pass a URL, a psycopg.AsyncConnection or a psycopg_pool.AsyncConnectionPool; "
                "docs/client.md shows that of SQLAlchemy.",
            )

    async def __aenter__(self) -> Self:
        """Connects, and returns itself."""
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        """Closes the connection, if it is the client's own."""
        await self.close()

    async def open(self) -> Self:
        """Connects, unless it has a connection or a pool; returns itself.

        Raises:
            ConnectionFailed: if the server cannot be reached or refuses the connection.
            UnsupportedServer: if it is older than PostgreSQL 14.
        """
        if self._is_own and self._connection is None:
            self._connection = await connect_async(self._url)
        return self

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

    async def find_url(self) -> str:
        """Returns the connection string, with its password."""
        if self._is_own:
            return self._url
        async with self._borrowed() as connection:
            return url_of(connection)

    async def close(self) -> None:
        """Closes the connection and rolls back an open transaction.

        A given connection or pool stays as it is.
        """
        if self._is_own and self._connection is not None:
            self._is_closed = True
            await self._connection.close()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """Runs the block in one transaction: commits at its end, rolls back if it raises.

        Within a transaction that is already open, it is a savepoint. So on a given connection that
        is not in autocommit mode, the caller commits. Other tasks that share the client wait for
        the block's end; tasks that the block starts are part of the transaction until then.

        Yields:
            The connection, for the caller's own statements. They commit together with a batch
            acked inside the block. psycopg errors of these statements are raised unchanged.
        """
        callers: psycopg.Error | None = None
        try:
            with translated():
                async with self._borrowed() as connection:
                    is_callers = not self._is_own and not connection.autocommit
                    if is_callers and not _is_open(connection):
                        await connection.execute("select 1")
                    # The commit is outside: a task's call during it is no part of the transaction.
                    async with connection.transaction():
                        with self._held.hold(connection):
                            try:
                                yield connection
                            except psycopg.Error as error:
                                callers = error
                                raise
        except PgqueError as error:
            if callers is not None and error.__cause__ is callers:
                raise callers from callers.__cause__
            raise

    async def run(self, work: Call[T] | Steps[T]) -> T:
        """Runs one call, or several steps in one transaction; returns the parsed result."""
        try:
            return await self._run(work)
        except QueueNotFound as error:
            raise (await self._explained(error)) from error.__cause__

    async def _run(self, work: Call[T] | Steps[T]) -> T:
        if isinstance(work, Call):
            async with self._borrowed() as connection:
                return await self._call(connection, work)
        async with self.transaction() as connection:
            result = None
            while True:
                try:
                    step = work.send(result)
                except StopIteration as done:
                    return done.value  # type: ignore[no-any-return]
                result = await self._step(connection, step)

    async def _step(self, connection: AsyncConnection, step: Call[Any] | Copy | Hook) -> Any:
        if isinstance(step, Call):
            return await self._call(connection, step)
        if isinstance(step, Hook):
            result = step.function(connection)
            return await result if inspect.isawaitable(result) else result
        self._copying.add(connection)
        try:
            with translated_with_role(connection, step.sql):
                async with psycopg.AsyncCursor(connection).copy(step.sql.encode()) as copy:
                    for block in step.blocks:
                        await copy.write(block)
        finally:
            self._copying.discard(connection)
        return None

    async def _call(self, connection: AsyncConnection, call: Call[T]) -> T:
        if call.around is not None:
            with call.around():
                return await self._call(connection, replace(call, around=None))
        # The cursors of a given connection may return other rows than tuples.
        cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
        try:
            await cursor.execute(call.sql, call.params)
            return call.parse(await cursor.fetchall())
        except (psycopg.Error, UnicodeEncodeError, NotImplementedError) as error:
            raise error_with_role(connection, call.sql, error) from error

    async def _explained(self, error: QueueNotFound) -> QueueNotFound:
        """Returns the error with what is found about the name, unless the transaction failed."""
        for look in () if self.in_transaction else LOOKS:
            with suppress(PgqueError):
                error = await self._run(look(error))
        return error

    @asynccontextmanager
    async def _borrowed(self) -> AsyncIterator[AsyncConnection]:
        """Lends the connection that this task holds, or waits for one."""
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
            async with self._lock:
                if self._is_own and self._connection.closed:
                    self._connection = await connect_async(self._url)
                connection = self._connection
                try:
                    yield connection
                finally:
                    # A cancelled call may leave a statement behind, whose transaction stays open.
                    if connection.info.transaction_status == TransactionStatus.ACTIVE:
                        await connection.close()
        elif self._pool is not None:
            with translated():
                async with self._pool.connection() as connection:
                    yield connection
        else:
            raise InvalidArgument(
                "the client is not connected",
                "Use `async with AsyncClient(url) as client`, or await client.open().",
            )


def _is_open(connection: AsyncConnection) -> bool:
    status = connection.info.transaction_status
    return status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)
