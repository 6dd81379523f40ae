"""The client: a session with the queue's operations on it."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import overload
from uuid import UUID

from psycopg.pq import TransactionStatus

from . import calls
from .batch import Batch
from .calls.encoding import Payload
from .errors import InvalidArgument
from .models import (
    BatchInfo,
    ConsumerInfo,
    DeadLetter,
    DeadLetterCount,
    HealthCheck,
    Lease,
    LeaseInfo,
    Limits,
    Message,
    Metric,
    QueueInfo,
    QueueStats,
    ScheduledEvent,
    Sent,
    Status,
)
from .session import Session

NO_LIMITS = Limits()
DEFAULT_TTL = timedelta(minutes=1)
DEFAULT_KEY_TTL = timedelta(hours=1)


class Client(Session):
    """One connection to a database with pgque. Use it as a context manager.

    Each call is its own transaction, unless it runs inside a `transaction()` block. Threads may
    share a client; it runs one call at a time.

    Args:
        url: a libpq connection string or URI. PG* environment variables supply what it omits.

    Raises:
        ConnectionFailed: if the server cannot be reached or refuses the connection.
        UnsupportedServer: if it is older than PostgreSQL 14.

    All methods raise the subclass of `PgqueError` that fits.
    """

    def version(self) -> str:
        """Returns the version of the installed schema."""
        return self.run(calls.maintenance.version())

    def lineage(self) -> UUID:
        """Returns which life of which database this is.

        A batch id means the same batch only within one lineage. An installation of its own, a copy
        of the database, an adopted restore, a promoted standby and a recovery to a point in time
        each have another one.

        Raises:
            NotAdopted: if the database was restored from a dump and is not adopted yet.
        """
        return self.run(calls.maintenance.lineage())

    # Producing

    @overload
    def send(
        self,
        queue: str,
        payload: Payload,
        *,
        type: str = ...,
        partition_key: str | None = ...,
        check_json: bool = ...,
    ) -> int: ...

    @overload
    def send(
        self,
        queue: str,
        payload: Payload,
        *,
        type: str = ...,
        partition_key: str | None = ...,
        idempotency_key: str,
        idempotency_ttl: timedelta = ...,
    ) -> Sent: ...

    def send(
        self,
        queue: str,
        payload: Payload,
        *,
        type: str = "default",
        partition_key: str | None = None,
        check_json: bool = False,
        idempotency_key: str | None = None,
        idempotency_ttl: timedelta = DEFAULT_KEY_TTL,
    ) -> int | Sent:
        """Publishes one event.

        Args:
            queue: the queue's name.
            payload: text, stored unchanged, or a list or dict, stored as JSON.
            type: the event's type.
            partition_key: partitioned consumers handle events with the same key in order.
            check_json: makes the server refuse text that is not JSON. Not together with an
                idempotency key.
            idempotency_key: 1 to 1000 bytes. If an event with this key was sent within its
                `idempotency_ttl`, nothing is sent.
            idempotency_ttl: how long the key is remembered.

        Returns:
            The event's id; with an idempotency key, a `Sent`.

        Raises:
            InvalidArgument: if `check_json` is given with an idempotency key.
        """
        if idempotency_key is None:
            return self.run(calls.publishing.send(queue, payload, type, partition_key, check_json))
        if check_json:
            raise InvalidArgument(
                "check_json does not work with an idempotency key",
                "Validate the payload before sending, or drop one of the two.",
            )
        return self.run(
            calls.publishing.send_idem(
                queue, payload, idempotency_key, type, idempotency_ttl, partition_key
            )
        )

    def send_at(self, queue: str, payload: Payload, at: datetime, *, type: str = "default") -> int:
        """Publishes one event at a given time, or at once if that time is past.

        Args:
            queue: the queue's name.
            payload: text, stored unchanged, or a list or dict, stored as JSON.
            at: the time of delivery, with a time zone. Maintenance delivers the event.
            type: the event's type.

        Returns:
            The id of the scheduled entry, for `cancel_scheduled`, or the id of the event if it was
            sent at once. Entry ids are 2**52 or higher; event ids are lower.

        Raises:
            InvalidArgument: if the time has no zone.
        """
        return self.run(calls.publishing.send_at(queue, payload, at, type))

    def cancel_scheduled(self, entry_id: int) -> bool:
        """Cancels an entry of `send_at`; returns False if it was delivered or cancelled before."""
        return self.run(calls.publishing.cancel_scheduled(entry_id))

    def list_scheduled(self, queue: str, limit: int = 100) -> list[ScheduledEvent]:
        """Returns a queue's scheduled events, the earliest first."""
        return self.run(calls.publishing.list_scheduled(queue, limit))

    def send_batch(
        self, queue: str, payloads: Sequence[Payload], *, type: str = "default"
    ) -> list[int]:
        """Publishes many events of one type in one statement; returns their ids in order."""
        return self.run(calls.publishing.send_batch(queue, payloads, type))

    # Queues and consumers

    def create_queue(self, queue: str, **options: str | int | bool | None) -> bool:
        """Creates a queue (name of 1 to 57 bytes); returns False if it existed.

        Args:
            queue: the queue's name.
            **options: parameters as for `configure_queue`; also applied to an existing queue.
        """
        if not options:
            return self.run(calls.queues.create_queue(queue))
        return self.run(calls.queues.create_queue_with(queue, options))

    def pause_queue(self, queue: str) -> None:
        """Stops a queue's ticks. It still accepts events and delivers them when it is resumed."""
        self.run(calls.queues.pause_queue(queue))

    def resume_queue(self, queue: str) -> None:
        """Resumes the ticks of a paused queue."""
        self.run(calls.queues.resume_queue(queue))

    def drop_queue(self, queue: str, *, force: bool = False) -> None:
        """Drops a queue and its events. If consumers are registered, `force` is needed."""
        self.run(calls.queues.drop_queue(queue, force))

    def configure_queue(self, queue: str, **parameters: str | None) -> None:
        """Sets parameters such as `ticker_max_lag="1 second"`, all or none; None resets one."""
        with self.transaction():
            for parameter, value in parameters.items():
                self.run(calls.queues.configure_queue(queue, parameter, value))

    def register_consumer(self, queue: str, consumer: str) -> bool:
        """Registers a consumer at the last tick; returns False if it is registered."""
        return self.run(calls.consumers.register_consumer(queue, consumer))

    def unregister_consumer(
        self, queue: str, consumer: str, *, keep_dead_letters: bool = False
    ) -> None:
        """Unregisters a consumer and deletes its scheduled retries and its dead letters.

        Args:
            queue: the queue's name.
            consumer: the consumer's name.
            keep_dead_letters: keeps the dead letters. They can be replayed once the consumer is
                registered again.
        """
        if not self.run(calls.consumers.unregister_consumer(queue, consumer, keep_dead_letters)):
            self.run(calls.consumers.check_consumer(queue, consumer))

    # Consuming

    def next_batch(self, queue: str, consumer: str, limits: Limits = NO_LIMITS) -> int | None:
        """Opens the next batch without a lease, or returns the open one; None if there is none."""
        return self.run(calls.batches.next_batch(queue, consumer, limits))

    def claim(
        self,
        queue: str,
        consumer: str,
        *,
        owner: str,
        ttl: timedelta = DEFAULT_TTL,
        limits: Limits = NO_LIMITS,
        batch_id: int | None = None,
    ) -> Batch | None:
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
            BatchLeased: if another owner holds a live lease.
            BatchNotOpen: if `batch_id` is not the consumer's open batch.
        """
        lease = self.run(calls.batches.claim(queue, consumer, owner, ttl, limits, batch_id))
        return Batch(self, queue, consumer, lease, ttl) if lease else None

    def finish_batch(self, batch_id: int) -> None:
        """Finishes a batch that was opened without a lease."""
        self.run(calls.batches.finish_batch(batch_id))

    def batch_events(self, batch_id: int) -> list[Message]:
        """Returns all events of an open batch in order of id."""
        return self.run(calls.batches.batch_events(batch_id))

    def batch_info(self, batch_id: int) -> BatchInfo:
        """Returns the ticks, times and event ids that an open batch spans."""
        return self.run(calls.batches.batch_info(batch_id))

    def lease_info(self, queue: str, consumer: str) -> LeaseInfo | None:
        """Returns who holds, or last held, the open batch; None if no batch is open."""
        return self.run(calls.batches.lease_info(queue, consumer))

    def renew(self, lease: Lease, ttl: timedelta) -> None:
        """Extends a lease."""
        self.run(calls.batches.renew(lease, ttl))

    # Running the queue

    def ticker(self) -> int:
        """Ticks the queues that are due; returns how many."""
        return self.run(calls.maintenance.ticker())

    def force_next_tick(self, queue: str) -> None:
        """Makes the next ticker run tick this queue even if no tick is due."""
        self.run(calls.maintenance.force_next_tick(queue))

    def maint(self) -> int:
        """Rotates tables, delivers due retries, compacts; returns the number of operations done."""
        call = calls.maintenance.maint()
        if self._connection.info.transaction_status != TransactionStatus.IDLE:
            return self.run(call)
        # Maintenance is refused in a stricter isolation, which may be the role's default.
        with self.transaction() as connection:
            connection.execute("set transaction isolation level read committed")
            return self.run(call)

    def start(self) -> None:
        """Schedules ticks and maintenance in pg_cron. Calling it again changes nothing.

        Raises:
            SchedulerMissing: if this database has no pg_cron; the hint says what to do.
        """
        self.run(calls.maintenance.start())

    def stop(self) -> None:
        """Removes the jobs of `start`, if there are any.

        Raises:
            SchedulerMissing: if another database's pg_cron may have jobs for this one.
        """
        self.run(calls.maintenance.stop())

    def status(self) -> list[Status]:
        """Returns the state of each component: schema, ticker, maintenance and so on."""
        return self.run(calls.statistics.status())

    def queues(self) -> list[QueueInfo]:
        """Returns the state of all queues."""
        return self.run(calls.statistics.queue_info())

    def consumers(self, queue: str | None = None) -> list[ConsumerInfo]:
        """Returns the state of a queue's consumers, or of all consumers."""
        if queue is not None:
            self.run(calls.queues.check_queue(queue))
        return self.run(calls.statistics.consumer_info(queue))

    def queue_stats(self) -> list[QueueStats]:
        """Returns the key figures of all queues: depth, age, rate, dead letters."""
        return self.run(calls.statistics.queue_stats())

    def health(self) -> list[HealthCheck]:
        """Returns the health checks of the database and of each queue, with what to do."""
        return self.run(calls.statistics.health())

    def metrics(self) -> list[Metric]:
        """Returns all metrics for an exporter. docs/observability.md lists them."""
        return self.run(calls.statistics.metrics())

    def dead_letter_counts(self, queue: str) -> list[DeadLetterCount]:
        """Counts a queue's dead letters by consumer and reason, the highest count first."""
        return self.run(calls.dead_letters.dead_letter_counts(queue))

    def dead_letters(self, queue: str, limit: int = 100) -> list[DeadLetter]:
        """Returns a queue's newest dead letters."""
        self.run(calls.queues.check_queue(queue))
        return self.run(calls.dead_letters.dead_letters(queue, limit))

    def replay_dead_letter(self, dead_letter_id: int) -> int:
        """Sends a dead letter to its consumer again; returns the new event's id."""
        return self.run(calls.dead_letters.replay_dead_letter(dead_letter_id))

    def replay_dead_letters(
        self,
        queue: str,
        *,
        reason: str | None = None,
        type: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        max_id: int | None = None,
    ) -> tuple[int, int, str | None]:
        """Replays the dead letters that match all given filters, the oldest first.

        A dead letter that cannot be replayed stays; the others are replayed.

        Args:
            queue: the queue's name.
            reason: a LIKE pattern for the reason.
            type: the type of the events.
            since: only dead letters of this time or later.
            until: only dead letters before this time.
            limit: the maximum number to replay.
            max_id: only dead letters up to this id, so that several calls replay no event that was
                given up again meanwhile.

        Returns:
            The number replayed, the number not replayed, and the first error.

        Raises:
            QueueClosed: if the queue accepts no events; all dead letters stay.
        """
        return self.run(
            calls.dead_letters.replay_dead_letters(queue, reason, type, since, until, limit, max_id)
        )

    def purge_dead_letters(self, queue: str, older_than: timedelta) -> int:
        """Deletes dead letters older than an interval; returns the number deleted."""
        self.run(calls.queues.check_queue(queue))
        return self.run(calls.dead_letters.purge_dead_letters(queue, older_than))
