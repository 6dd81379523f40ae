"""The installation: its version, ticks and maintenance, health and metrics."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from .models import HealthCheck, Metric, Status
from .operation import Call, Steps, first, nothing, operation


class Installation:
    """The methods of a client for the whole installation."""

    in_transaction: Any

    @operation
    def version(self) -> Call[str]:
        """Returns the version of the installed schema."""
        return Call("select pgque.version()", (), first)

    @operation
    def incarnation(self) -> Call[UUID]:
        """Returns the incarnation of the database.

        A batch id means the same batch only within one incarnation. Each installation, copy of the
        database, adopted restore, promoted standby and point-in-time recovery starts a new one.

        Raises:
            CallRefused: if the database was restored from a dump and is not adopted yet.
        """
        return Call("select pgque.incarnation()", (), first)

    @operation
    def ticker(self) -> Call[int]:
        """Ticks the queues that are due; returns how many."""
        return Call("select pgque.ticker()", (), first)

    @operation
    def maint(self) -> Steps[int]:
        """Rotates tables, delivers due retries and compacts; returns the number of operations."""
        # Read before the first step, because the steps run in a transaction.
        return _maint(is_first=not self.in_transaction)

    @operation
    def start(self) -> Call[None]:
        """Schedules ticks and maintenance in pg_cron. Calling it again changes nothing.

        Raises:
            CallRefused: if this database has no pg_cron; the hint says what to do.
        """
        return Call("select pgque.start()::text", (), nothing)

    @operation
    def stop(self) -> Call[None]:
        """Removes the jobs that `start` scheduled, if there are any.

        Raises:
            CallRefused: if another database's pg_cron may have jobs for this one.
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


def tick_period() -> Call[timedelta]:
    """Returns the configured period of the ticker."""
    return Call("select tick_period from pgque.ticker_pace()", (), first)


def _maint(*, is_first: bool) -> Steps[int]:
    if is_first:
        # Maintenance refuses a stricter isolation level, which may be the role's default.
        yield Call("set transaction isolation level read committed", (), nothing)
    done: int = yield Call("select pgque.maint()", (), first)
    return done
