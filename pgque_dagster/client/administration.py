"""The part of the client that manages queues, runs them and reports on them."""

from abc import abstractmethod
from typing import Any
from uuid import UUID

from . import calls
from .calls.call import Call, Hook, Steps
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
    def lineage(self) -> Call[UUID]:
        """Returns which life of which database this is.

        A batch id means the same batch only within one lineage. An installation of its own, a copy
        of the database, an adopted restore, a promoted standby and a recovery to a point in time
        each have another one.

        Raises:
            NotAdopted: if the database was restored from a dump and is not adopted yet.
        """
        return calls.maintenance.lineage()

    @operation
    def create_queue(self, /, queue: str, **options: str | int | bool | None) -> Call[bool]:
        """Creates a queue (name of 1 to 57 bytes); returns False if it existed.

        Args:
            queue: the queue's name.
            **options: parameters as for `configure_queue`; also applied to an existing queue.
        """
        if not options:
            return calls.queues.create_queue(queue)
        return calls.queues.create_queue_with(queue, options)

    @operation
    def pause_queue(self, queue: str) -> Call[None]:
        """Stops a queue's ticks. It still accepts events and delivers them when it is resumed."""
        return calls.queues.pause_queue(queue)

    @operation
    def resume_queue(self, queue: str) -> Call[None]:
        """Resumes the ticks of a paused queue."""
        return calls.queues.resume_queue(queue)

    @operation
    def drop_queue(self, queue: str, *, force: bool = False) -> Call[None]:
        """Drops a queue and its events. If consumers are registered, `force` is needed."""
        return calls.queues.drop_queue(queue, force)

    @operation
    def configure_queue(self, /, queue: str, **parameters: str | int | bool | None) -> Steps[None]:
        """Sets parameters such as `ticker_max_lag="1 second"`, all or none; None resets one."""
        for parameter, value in parameters.items():
            yield calls.queues.configure_queue(queue, parameter, value)

    @operation
    def ticker(self) -> Call[int]:
        """Ticks the queues that are due; returns how many."""
        return calls.maintenance.ticker()

    @operation
    def force_next_tick(self, queue: str) -> Call[None]:
        """Makes the next ticker run tick this queue even if no tick is due."""
        return calls.maintenance.force_next_tick(queue)

    @operation
    def maint(self) -> Steps[int]:
        """Rotates tables, delivers due retries, compacts; returns the number of operations done."""
        # Asked here, because the steps run in a transaction.
        return self._maint_steps(is_first=not self.in_transaction)

    def _maint_steps(self, *, is_first: bool) -> Steps[int]:
        if is_first:
            # Maintenance is refused in a stricter isolation, which may be the role's default.
            yield Hook(_set_read_committed)
        done: int = yield calls.maintenance.maint()
        return done

    @operation
    def start(self) -> Call[None]:
        """Schedules ticks and maintenance in pg_cron. Calling it again changes nothing.

        Raises:
            SchedulerMissing: if this database has no pg_cron; the hint says what to do.
        """
        return calls.maintenance.start()

    @operation
    def stop(self) -> Call[None]:
        """Removes the jobs of `start`, if there are any.

        Raises:
            SchedulerMissing: if another database's pg_cron may have jobs for this one.
        """
        return calls.maintenance.stop()

    @operation
    def status(self) -> Call[list[Status]]:
        """Returns the state of each component: schema, ticker, maintenance and so on."""
        return calls.statistics.status()

    @operation
    def queues(self) -> Call[list[QueueInfo]]:
        """Returns the state of all queues."""
        return calls.statistics.queue_info()

    @operation
    def consumers(self, queue: str | None = None) -> Steps[list[ConsumerInfo]]:
        """Returns the state of a queue's consumers, or of all consumers."""
        if queue is not None:
            yield calls.queues.check_queue(queue)
        found: list[ConsumerInfo] = yield calls.statistics.consumer_info(queue)
        return found

    @operation
    def queue_stats(self) -> Call[list[QueueStats]]:
        """Returns the key figures of all queues: depth, age, rate, dead letters."""
        return calls.statistics.queue_stats()

    @operation
    def health(self) -> Call[list[HealthCheck]]:
        """Returns the health checks of the database and of each queue, with what to do."""
        return calls.statistics.health()

    @operation
    def metrics(self) -> Call[list[Metric]]:
        """Returns all metrics for an exporter. docs/observability.md lists them."""
        return calls.statistics.metrics()


def _set_read_committed(connection: Any) -> object:
    """Begins the transaction; a ticker whose session was ended just before reconnects."""
    with translated():
        return connection.execute(_READ_COMMITTED)
