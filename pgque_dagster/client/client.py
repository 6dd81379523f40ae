"""The client: a connection or a pool with the queue's operations on it, in two faces."""

from .administration import Administration
from .batch import AsyncBatch, Batch
from .consuming import Consuming
from .dead_letters import DeadLetters
from .messages import AsyncMessages, Messages
from .producing import Producing
from .registrations import Registrations
from .serial import AsyncSerialQueues, SerialQueues
from .session import AsyncSession, Session


class Client(Session, Producing, Registrations, Consuming[Batch], Administration, DeadLetters):
    """A database with pgque. Use it as a context manager.

    Each call is its own transaction, unless it runs inside a `transaction()` block or, on a given
    connection, in the transaction of its owner. Threads may share a client; it runs one call at a
    time.

    Args:
        database: a libpq connection string or URI, whose gaps PG* environment variables fill; a
            `psycopg.Connection`; or a `psycopg_pool.ConnectionPool`, from which each call or
            `transaction()` block takes a connection.

    Raises:
        ConnectionFailed: if the server cannot be reached or refuses the connection.
        UnsupportedServer: if it is older than PostgreSQL 14.

    All methods raise the subclass of `PgqueError` that fits.

    Example:
        >>> with Client(url) as client:
        ...     client.send("orders", "tea")
        1
    """

    _batch_class = Batch

    @property
    def serial(self) -> SerialQueues:
        """The serial queues of the add-on qgres."""
        return SerialQueues(self)

    @property
    def messages(self) -> Messages:
        """The topics, queues and messages of the add-on postgremq."""
        return Messages(self)


class AsyncClient(
    AsyncSession, Producing, Registrations, Consuming[AsyncBatch], Administration, DeadLetters
):
    """The client for asyncio. Its methods are those of `Client`, as coroutine functions.

    Tasks may share a client; it runs one call at a time. With a pool, it runs several.

    Args:
        database: a libpq connection string or URI, to which `async with` or `open` connects; a
            `psycopg.AsyncConnection`; or a `psycopg_pool.AsyncConnectionPool`.

    Example:
        >>> async def main():
        ...     async with AsyncClient(url) as client:
        ...         return await client.send("orders", "tea")
        >>> asyncio.run(main())
        1
    """

    _batch_class = AsyncBatch

    @property
    def serial(self) -> AsyncSerialQueues:
        """The serial queues of the add-on qgres."""
        return AsyncSerialQueues(self)

    @property
    def messages(self) -> AsyncMessages:
        """The topics, queues and messages of the add-on postgremq."""
        return AsyncMessages(self)
