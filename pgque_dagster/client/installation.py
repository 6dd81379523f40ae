"""The installation: its version, ticks and maintenance, health and metrics."""

from datetime import timedelta
from uuid import UUID

from .models import HealthCheck, Metric, Status
from .operation import Call, Steps, first, nothing


def version() -> Call[str]:
    """Returns the version of the installed schema."""
    return Call("select pgque.version()", (), first)


def incarnation() -> Call[UUID]:
    """Returns which life of which database this is.

    A batch id means the same batch only within one incarnation. Each installation, copy of the
    database, adopted restore, promoted standby and recovery to a point in time has its own.

    Raises:
        CallRefused: if the database was restored from a dump and is not adopted yet.
    """
    return Call("select pgque.incarnation()", (), first)


def ticker() -> Call[int]:
    """Ticks the queues that are due; returns how many."""
    return Call("select pgque.ticker()", (), first)


def tick_period() -> Call[timedelta]:
    """Returns the configured period of the ticker."""
    return Call("select tick_period from pgque.ticker_pace()", (), first)


def maint(*, is_first: bool) -> Steps[int]:
    """Runs maintenance; returns the number of operations done.

    Args:
        is_first: whether these steps are the first of their transaction.
    """
    if is_first:
        # Maintenance is refused in a stricter isolation, which may be the role's default.
        yield Call("set transaction isolation level read committed", (), nothing)
    done: int = yield Call("select pgque.maint()", (), first)
    return done


def start() -> Call[None]:
    """Schedules ticks and maintenance in pg_cron. Calling it again changes nothing.

    Raises:
        CallRefused: if this database has no pg_cron; the hint says what to do.
    """
    return Call("select pgque.start()::text", (), nothing)


def stop() -> Call[None]:
    """Removes the jobs of `start`, if there are any.

    Raises:
        CallRefused: if another database's pg_cron may have jobs for this one.
    """
    return Call("select pgque.stop()::text", (), nothing)


def status() -> Call[list[Status]]:
    """Returns the state of each component: schema, ticker, maintenance and so on."""
    return Call(
        "select component, status, detail from pgque.status()",
        (),
        lambda rows: [Status(*row) for row in rows],
    )


def health() -> Call[list[HealthCheck]]:
    """Returns the health checks of the database and of each queue, with what to do."""
    return Call(
        "select queue_name, check_name, status, detail from pgque.queue_health()",
        (),
        lambda rows: [HealthCheck(*row) for row in rows],
    )


def metrics() -> Call[list[Metric]]:
    """Returns all metrics for an exporter. docs/observability.md lists them."""
    return Call(
        "select metric_name, metric_type, value::float8, labels from pgque.otel_metrics()",
        (),
        lambda rows: [Metric(*row) for row in rows],
    )
