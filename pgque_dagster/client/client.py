"""The client: the queue's operations on a connection or a pool, plain or asynchronous."""

from dataclasses import astuple
from datetime import timedelta
from typing import Any, Generic, TypeVar

from . import batch
from .batch import DEFAULT_TTL, NO_LIMITS, AsyncBatch, Batch
from .dead_letters import DeadLetters
from .installation import Installation
from .models import BatchInfo, LeaseInfo, Limits
from .operation import Call, Row, Steps, first, nothing, operation
from .producing import Producing
from .queues import Queues
from .registrations import Registrations
from .replicas.status import ReplicaStatus, replicas
from .session import AsyncSession, Session

ClaimedBatch = TypeVar("ClaimedBatch")


class _Claiming(Generic[ClaimedBatch]):
    """The methods that open batches. Each client has its own class of batches."""

    _batch_class: Any

    @operation
    def claim(
        self,
        queue: str,
        consumer: str,
        *,
        owner: str,
        ttl: timedelta = DEFAULT_TTL,
        limits: Limits = NO_LIMITS,
        batch_id: int | None = None,
    ) -> Call[ClaimedBatch | None]:
        """Claims the next batch, or the open batch if no live lease is on it.

        Args:
            queue: the queue's name.
            consumer: the consumer's name.
            owner: who claims the batch, such as a run id or a host and process; others see it.
            ttl: how long the lease lasts without renewal.
            limits: the fewest events of a batch to open, or its age, and its maximum size.
            batch_id: if given, claims only this open batch.

        Returns:
            The claimed batch, or None when there is no batch.

        Raises:
            BatchLeased: if another owner has a live lease.
            BatchNotOpen: if `batch_id` is not the consumer's open batch.
        """
        call = batch.claim(queue, consumer, owner, ttl, limits, batch_id)

        def parse(rows: list[Row]) -> ClaimedBatch | None:
            lease = call.parse(rows)
            return self._batch_class(self, queue, consumer, lease, ttl) if lease else None

        return Call(call.sql, call.params, parse)

    @operation
    def next_batch(self, queue: str, consumer: str, limits: Limits = NO_LIMITS) -> Call[int | None]:
        """Opens the next batch without a lease, or returns the open one; None if there is none."""
        return Call(
            # The casts select the overload without a subconsumer.
            "select batch_id from pgque.next_batch_custom("
            "%s, %s, %s::interval, %s::integer, %s::interval, %s::integer)",
            (queue, consumer, *astuple(limits)),
            first,
        )

    @operation
    def finish_batch(self, batch_id: int) -> Call[None]:
        """Finishes a batch that was opened without a lease."""
        return Call("select pgque.finish_batch(%s)", (batch_id,), nothing)

    @operation
    def batch_info(self, batch_id: int) -> Call[BatchInfo]:
        """Returns the ticks, times and event ids that an open batch spans."""
        return batch.batch_info(batch_id)

    @operation
    def lease_info(self, queue: str, consumer: str) -> Call[LeaseInfo | None]:
        """Returns who has, or last had, the lease on the open batch; None if no batch is open."""
        return batch.lease_info(queue, consumer)


class _Operations(
    Producing, Registrations, _Claiming[ClaimedBatch], DeadLetters, Queues, Installation
):
    """The methods that both clients have, including those for replicas."""

    @operation
    def replicas(self, queue: str | None = None) -> Steps[list[ReplicaStatus]]:
        """Returns the state of the table replicas of a queue's consumers, or of all consumers."""
        return replicas(queue)


class Client(Session, _Operations[Batch]):
    """A database with pgque. Use it as a context manager.

    Each call is its own transaction, unless it runs inside a `transaction()` block or on a given
    connection whose owner has opened a transaction. Threads may share a client, but it runs only
    one call at a time.

    Args:
        database: a libpq connection string or URI (PG* environment variables supply what it omits);
            a `psycopg.Connection`; or a `psycopg_pool.ConnectionPool`, from which each call or
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


class AsyncClient(AsyncSession, _Operations[AsyncBatch]):
    """The client for asyncio. Its methods are those of `Client`, as coroutine functions.

    Tasks may share a client; it runs one call at a time, or several with a pool.

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
