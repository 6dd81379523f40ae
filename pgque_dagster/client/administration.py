"""The part of the client that manages queues, runs them and reports on them."""

from abc import abstractmethod
from typing import Any
from uuid import UUID

from . import calls
from .calls.call import Call, Hook, Steps, first, nothing
from .encoding import encode
from .errors import translated
from .models import ConsumerInfo, HealthCheck, Metric, QueueInfo, QueueStats, Status
from .operation import operation

_READ_COMMITTED = "set transaction isolation level read committed"


class Administration:
    """The operations on queues and on the installation."""

    @property
    @abstractmethod
    def in_transaction(self) -> bool:
        """Whether calls are part of a transaction that is already open."""

    @operation
    def version(self) -> Call[str]:
        """Returns the version of the installed schema."""
        return calls.maintenance.version()

    @operation
    def incarnation(self) -> Call[UUID]:
        """Returns which life of which database this is.

        A batch id means the same batch only within one incarnation. An installation of its own, a
        copy of the database, an adopted restore, a promoted standby and a recovery to a point in
        time each have another one.

        Raises:
            NotAdopted: if the database was restored from a dump and is not adopted yet.
        """
        return calls.maintenance.incarnation()

    @operation
    def create_queue(self, /, queue: str, **options: str | int | bool | None) -> Call[bool]:
        """Creates a queue (name of 1 to 57 bytes); returns False if it existed.

        Args:
            queue: the queue's name.
            **options: parameters as for `configure_queue`; also applied to an existing queue.
        """
        if not options:
            return Call("select pgque.create_queue(%s) = 1", (queue,), first)
        return Call("select pgque.create_queue(%s, %s::jsonb) = 1", (queue, encode(options)), first)

    @operation
    def pause_queue(self, queue: str) -> Call[None]:
        """Stops a queue's ticks. It still accepts events and delivers them when it is resumed."""
        return Call("select pgque.pause_queue(%s)::text", (queue,), nothing)

    @operation
    def resume_queue(self, queue: str) -> Call[None]:
        """Resumes the ticks of a paused queue."""
        return Call("select pgque.resume_queue(%s)::text", (queue,), nothing)

    @operation
    def drop_queue(self, queue: str, *, force: bool = False) -> Call[None]:
        """Drops a queue and its events. If consumers are registered, `force` is needed."""
        return Call("select pgque.drop_queue(%s, %s)", (queue, force), nothing)

    @operation
    def configure_queue(self, /, queue: str, **parameters: str | int | bool | None) -> Steps[None]:
        """Sets parameters such as `ticker_max_lag="1 second"`, all or none; None resets one."""
        for parameter, value in parameters.items():
            text = None if value is None else encode(value)
            statement = "select pgque.set_queue_config(%s, %s, %s)"
            yield Call(statement, (queue, parameter, text), nothing)

    @operation
    def ticker(self) -> Call[int]:
        """Ticks the queues that are due; returns how many."""
        return Call("select pgque.ticker()", (), first)

    @operation
    def force_next_tick(self, queue: str) -> Call[None]:
        """Makes the next ticker run tick this queue even if no tick is due."""
        return Call("select pgque.force_next_tick(%s)", (queue,), nothing)

    @operation
    def maint(self) -> Steps[int]:
        """Rotates tables, delivers due retries, compacts; returns the number of operations done."""
        # Asked here, because the steps run in a transaction.
        return self._maint_steps(is_first=not self.in_transaction)

    def _maint_steps(self, *, is_first: bool) -> Steps[int]:
        if is_first:
            # Maintenance is refused in a stricter isolation, which may be the role's default.
            yield Hook(_set_read_committed)
        done: int = yield Call("select pgque.maint()", (), first)
        return done

    @operation
    def start(self) -> Call[None]:
        """Schedules ticks and maintenance in pg_cron. Calling it again changes nothing.

        Raises:
            SchedulerMissing: if this database has no pg_cron; the hint says what to do.
        """
        return Call("select pgque.start()::text", (), nothing)

    @operation
    def stop(self) -> Call[None]:
        """Removes the jobs of `start`, if there are any.

        Raises:
            SchedulerMissing: if another database's pg_cron may have jobs for this one.
        """
        return Call("select pgque.stop()::text", (), nothing)

    @operation
    def status(self) -> Call[list[Status]]:
        """Returns the state of each component: schema, ticker, maintenance and so on."""
        return Call(
            "select component, status, detail from pgque.status()",
            (),
            lambda rows: [Status(*row) for row in rows],
        )

    @operation
    def queues(self) -> Call[list[QueueInfo]]:
        """Returns the state of all queues."""
        return Call(
            "select queue_name, ticker_lag, ev_per_sec, ev_new, last_tick_id "
            "from pgque.get_queue_info()",
            (),
            lambda rows: [QueueInfo(*row) for row in rows],
        )

    @operation
    def consumers(self, queue: str | None = None) -> Steps[list[ConsumerInfo]]:
        """Returns the state of a queue's consumers, or of all consumers."""
        if queue is not None:
            yield calls.queues.check_queue(queue)
        found: list[ConsumerInfo] = yield Call(
            "select queue_name, consumer_name, i.lag, i.last_seen, i.last_tick, i.current_batch, "
            "i.pending_events, coalesce(u.events, 0), clock_timestamp() - u.waiting_since "
            "from pgque.get_consumer_info(%s::text) i "
            "left join pgque.unticked_events(%s::text) u using (queue_name)",
            (queue, queue),
            lambda rows: [ConsumerInfo(*row) for row in rows],
        )
        return found

    @operation
    def queue_stats(self) -> Call[list[QueueStats]]:
        """Returns the key figures of all queues: depth, age, rate, dead letters."""
        return Call(
            "select queue_name, depth, oldest_msg_age, consumers, events_per_sec::float8, "
            "rotation_age, ticker_paused, last_tick_time, dlq_count from pgque.queue_stats()",
            (),
            lambda rows: [QueueStats(*row) for row in rows],
        )

    @operation
    def health(self) -> Call[list[HealthCheck]]:
        """Returns the health checks of the database and of each queue, with what to do."""
        return Call(
            "select queue_name, check_name, status, detail from pgque.queue_health()",
            (),
            lambda rows: [HealthCheck(*row) for row in rows],
        )

    @operation
    def metrics(self) -> Call[list[Metric]]:
        """Returns all metrics for an exporter. docs/observability.md lists them."""
        return Call(
            "select metric_name, metric_type, value::float8, labels from pgque.otel_metrics()",
            (),
            lambda rows: [Metric(*row) for row in rows],
        )


def _set_read_committed(connection: Any) -> object:
    """Begins the transaction; a ticker whose session was ended just before reconnects."""
    with translated():
        return connection.execute(_READ_COMMITTED)
