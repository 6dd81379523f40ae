"""The client: a session with the queue's operations on it."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import overload
from uuid import UUID

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
    ReadPlan,
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

    Each call is a transaction of its own, unless it stands in a `transaction()` block. A client
    may be shared by threads; their calls follow one another.

    Args:
        url: a libpq connection string or URI; what it leaves out comes from the PG* environment.

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
        of the database and an adopted restore each have another one.

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
            payload: text, stored as it is, or lists and dicts, stored as JSON.
            type: what kind of event it is.
            partition_key: events of one key are handled in order where consumers use slots.
            check_json: whether the server refuses text that is not JSON. Not with an
                idempotency key.
            idempotency_key: 1 to 1000 bytes. If an event was sent under the same key within
                `idempotency_ttl`, nothing is sent.
            idempotency_ttl: how long the key counts.

        Returns:
            The event's id. With an idempotency key, `Sent`: the id of the event that was sent
            under the key, and whether that was before.

        Raises:
            InvalidArgument: if `check_json` is given with an idempotency key.
        """
        if idempotency_key is None:
            return self.run(calls.publishing.send(queue, payload, type, partition_key, check_json))
        if check_json:
            raise InvalidArgument(
                "check_json does not work with an idempotency key",
                "Check the payload before, or leave one of the two out.",
            )
        return self.run(
            calls.publishing.send_idem(
                queue, payload, idempotency_key, type, idempotency_ttl, partition_key
            )
        )

    def send_at(self, queue: str, payload: Payload, at: datetime, *, type: str = "default") -> int:
        """Publishes one event when its time has come, or at once when that is past.

        Args:
            queue: the queue's name.
            payload: text, stored as it is, or lists and dicts, stored as JSON.
            at: the time of delivery, with its zone; maintenance delivers what is due.
            type: what kind of event it is.

        Returns:
            The id of the entry that waits, for `cancel_scheduled`; of an event sent at once, its
            own. Entries have ids from 2**52 up, events have lower ones.

        Raises:
            InvalidArgument: if the time has no zone.
        """
        return self.run(calls.publishing.send_at(queue, payload, at, type))

    def cancel_scheduled(self, entry_id: int) -> bool:
        """Takes back an entry of `send_at`; returns False if it was delivered or cancelled."""
        return self.run(calls.publishing.cancel_scheduled(entry_id))

    def list_scheduled(self, queue: str, limit: int = 100) -> list[ScheduledEvent]:
        """Returns a queue's events that wait for their time, the next first."""
        return self.run(calls.publishing.list_scheduled(queue, limit))

    def send_batch(
        self, queue: str, payloads: Sequence[Payload], *, type: str = "default"
    ) -> list[int]:
        """Publishes many events of one type at once; returns their ids in the order given."""
        return self.run(calls.publishing.send_batch(queue, payloads, type))

    # Queues and consumers

    def create_queue(self, queue: str, **options: str | int | bool | None) -> bool:
        """Creates a queue (name of 1 to 57 bytes); returns False if it existed.

        Args:
            queue: the queue's name.
            **options: parameters as for `configure_queue`; a queue that exists takes them too.
        """
        if not options:
            return self.run(calls.queues.create_queue(queue))
        return self.run(calls.queues.create_queue_with(queue, options))

    def pause_queue(self, queue: str) -> None:
        """Stops a queue's ticks: it takes events, and hands them out when it is resumed."""
        self.run(calls.queues.pause_queue(queue))

    def resume_queue(self, queue: str) -> None:
        """Lets a paused queue tick again."""
        self.run(calls.queues.resume_queue(queue))

    def drop_queue(self, queue: str, *, force: bool = False) -> None:
        """Drops a queue with all its events; with consumers registered only by force."""
        self.run(calls.queues.drop_queue(queue, force))

    def configure_queue(self, queue: str, **parameters: str | None) -> None:
        """Sets parameters such as `ticker_max_lag="1 second"`, all or none; None resets one."""
        with self.transaction():
            for parameter, value in parameters.items():
                self.run(calls.queues.configure_queue(queue, parameter, value))

    def register_consumer(self, queue: str, consumer: str) -> bool:
        """Registers a consumer at the last tick; returns False if it was registered."""
        return self.run(calls.consumers.register_consumer(queue, consumer))

    def unregister_consumer(
        self, queue: str, consumer: str, *, keep_dead_letters: bool = False
    ) -> None:
        """Ends a registration with the consumer's waiting retries, and its dead letters too.

        Args:
            queue: the queue's name.
            consumer: the consumer's name.
            keep_dead_letters: leaves these; they can be replayed once it is registered again.
        """
        self.run(calls.consumers.unregister_consumer(queue, consumer, keep_dead_letters))

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
        """Opens the next batch under a lease, or takes over the open one that nobody holds.

        Args:
            queue: the queue's name.
            consumer: the consumer's name.
            owner: who takes it, for others to read (a run id, a host and process).
            ttl: how long the lease lasts without renewal.
            limits: which batch to open.
            batch_id: claims this open batch and no other.

        Returns:
            The claimed batch, or None when there is no batch.

        Raises:
            BatchLeased: if somebody else holds a live lease.
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
        """Returns what an open batch spans."""
        return self.run(calls.batches.batch_info(batch_id))

    def read_plan(self, batch_id: int, max_slices: int) -> ReadPlan:
        """Splits an open batch for reading side by side."""
        return self.run(calls.plans.read_plan(batch_id, max_slices))

    def lease_info(self, queue: str, consumer: str) -> LeaseInfo | None:
        """Returns who holds or last held the open batch; None when none is open."""
        return self.run(calls.batches.lease_info(queue, consumer))

    def renew(self, lease: Lease, ttl: timedelta) -> None:
        """Prolongs a lease."""
        self.run(calls.batches.renew(lease, ttl))

    # Running the queue

    def ticker(self) -> int:
        """Ticks the queues that are due; returns how many."""
        return self.run(calls.maintenance.ticker())

    def force_next_tick(self, queue: str) -> None:
        """Makes the next ticker run tick this queue, due or not."""
        self.run(calls.maintenance.force_next_tick(queue))

    def maint(self) -> int:
        """Rotates, delivers retries that are due, compacts; returns how many things it did."""
        return self.run(calls.maintenance.maint())

    def start(self) -> None:
        """Has pg_cron tick and maintain this database; again, it changes nothing.

        Raises:
            SchedulerMissing: if this database has no pg_cron; the hint says what to run where.
        """
        self.run(calls.maintenance.start())

    def stop(self) -> None:
        """Takes the jobs of `start` back; does nothing where there are none.

        Raises:
            SchedulerMissing: if another database's pg_cron may have jobs for this one.
        """
        self.run(calls.maintenance.stop())

    def status(self) -> list[Status]:
        """Returns how the parts are that keep the queues going."""
        return self.run(calls.statistics.status())

    def queues(self) -> list[QueueInfo]:
        """Returns the state of all queues."""
        return self.run(calls.statistics.queue_info())

    def consumers(self, queue: str | None = None) -> list[ConsumerInfo]:
        """Returns the state of a queue's consumers, or of all."""
        return self.run(calls.statistics.consumer_info(queue))

    def queue_stats(self) -> list[QueueStats]:
        """Returns all queues at a glance: depth, age, rate, dead letters."""
        return self.run(calls.statistics.queue_stats())

    def health(self) -> list[HealthCheck]:
        """Returns all checks of the database and of each queue, with what to do."""
        return self.run(calls.statistics.health())

    def metrics(self) -> list[Metric]:
        """Returns all metrics, for an exporter; docs/observability.md lists them."""
        return self.run(calls.statistics.metrics())

    def dead_letter_counts(self, queue: str) -> list[DeadLetterCount]:
        """Counts a queue's dead letters by consumer and reason, most first."""
        return self.run(calls.dead_letters.dead_letter_counts(queue))

    def dead_letters(self, queue: str, limit: int = 100) -> list[DeadLetter]:
        """Returns a queue's newest dead letters."""
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
    ) -> tuple[int, int, str | None]:
        """Replays the dead letters that fit, the oldest first; what is not given fits all.

        One that cannot be replayed stays, and the others go on.

        Args:
            queue: the queue's name.
            reason: a pattern of LIKE; a text without % and _ is the reason itself.
            type: the events' type.
            since: those given up at this time or later.
            until: those given up before this time.
            limit: how many at most.

        Returns:
            How many went, how many did not, and why the first of these did not.

        Raises:
            QueueClosed: if the queue takes no events now; all dead letters stay.
        """
        return self.run(
            calls.dead_letters.replay_dead_letters(queue, reason, type, since, until, limit)
        )

    def purge_dead_letters(self, queue: str, older_than: timedelta) -> int:
        """Deletes dead letters older than an age; returns how many."""
        return self.run(calls.dead_letters.purge_dead_letters(queue, older_than))
