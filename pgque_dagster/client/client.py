"""The client: a connection or a pool with the queue's operations on it, in two faces."""

from datetime import timedelta
from typing import Any, Generic, TypeVar

from . import batch, installation, producing, queues, registrations, replica_status
from . import dead_letters as letters
from .batch import DEFAULT_TTL, NO_LIMITS, AsyncBatch, Batch
from .models import Limits
from .operation import Call, Row, Steps, method, operation
from .session import AsyncSession, Session

B = TypeVar("B")


class _Operations(Generic[B]):
    """The operations of both faces. `B` is the class of a claimed batch."""

    _batch_class: Any
    in_transaction: Any

    send = method(producing.send)
    send_idem = method(producing.send_idem)
    send_batch = method(producing.send_batch)
    copy_events = method(producing.copy_events)
    send_at = method(producing.send_at)
    cancel_scheduled = method(producing.cancel_scheduled)
    list_scheduled = method(producing.list_scheduled)

    register_consumer = method(registrations.register_consumer)
    seek = method(registrations.seek)
    unregister_consumer = method(registrations.unregister_consumer)
    consumers = method(registrations.consumers)

    next_batch = method(batch.next_batch)
    finish_batch = method(batch.finish_batch)
    batch_info = method(batch.batch_info)
    lease_info = method(batch.lease_info)

    dead_letter_counts = method(letters.dead_letter_counts)
    dead_letters = method(letters.dead_letters)
    set_events_aside = method(letters.set_events_aside)
    replay_dead_letter = method(letters.replay_dead_letter)
    replay_dead_letters = method(letters.replay_dead_letters)
    purge_dead_letters = method(letters.purge_dead_letters)

    create_queue = method(queues.create_queue)
    configure_queue = method(queues.configure_queue)
    pause_queue = method(queues.pause_queue)
    resume_queue = method(queues.resume_queue)
    drop_queue = method(queues.drop_queue)
    force_next_tick = method(queues.force_next_tick)
    queue_stats = method(queues.queue_stats)

    version = method(installation.version)
    incarnation = method(installation.incarnation)
    ticker = method(installation.ticker)
    start = method(installation.start)
    stop = method(installation.stop)
    status = method(installation.status)
    health = method(installation.health)
    metrics = method(installation.metrics)
    replicas = method(replica_status.replicas)

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
    ) -> Call[B | None]:
        """Claims the next batch, or the open batch if no live lease is on it.

        Args:
            queue: the queue's name.
            consumer: the consumer's name.
            owner: who claims the batch, such as a run id or a host and process; others see it.
            ttl: how long the lease lasts without renewal.
            limits: which batch to open.
            batch_id: if given, claims only this open batch.

        Returns:
            The claimed batch, or None when there is no batch.

        Raises:
            BatchLeased: if another owner has a live lease.
            BatchNotOpen: if `batch_id` is not the consumer's open batch.
        """
        call = batch.claim(queue, consumer, owner, ttl, limits, batch_id)

        def parse(rows: list[Row]) -> B | None:
            lease = call.parse(rows)
            return self._batch_class(self, queue, consumer, lease, ttl) if lease else None

        return Call(call.sql, call.params, parse)

    @operation
    def maint(self) -> Steps[int]:
        """Rotates tables, delivers due retries, compacts; returns the number of operations done."""
        # Asked here, because the steps run in a transaction.
        return installation.maint(is_first=not self.in_transaction)


class Client(Session, _Operations[Batch]):
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


class AsyncClient(AsyncSession, _Operations[AsyncBatch]):
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
