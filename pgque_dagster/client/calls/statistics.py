"""Statistics, health and metrics of queues and consumers."""

from ..models import ConsumerInfo, HealthCheck, Metric, QueueInfo, QueueStats, Status
from .call import Call


def status() -> Call[list[Status]]:
    """The state of ticking and maintenance, by component."""
    return Call(
        "select component, status, detail from pgque.status()",
        (),
        lambda rows: [Status(*row) for row in rows],
    )


def queue_info() -> Call[list[QueueInfo]]:
    """All queues."""
    return Call(
        "select queue_name, ticker_lag, ev_per_sec, ev_new, last_tick_id "
        "from pgque.get_queue_info()",
        (),
        lambda rows: [QueueInfo(*row) for row in rows],
    )


def consumer_info(queue: str | None) -> Call[list[ConsumerInfo]]:
    """The consumers of a queue, or of all."""
    return Call(
        "select queue_name, consumer_name, i.lag, i.last_seen, i.last_tick, i.current_batch, "
        "i.pending_events, coalesce(u.events, 0), clock_timestamp() - u.waiting_since "
        "from pgque.get_consumer_info(%s::text) i "
        "left join pgque.unticked_events(%s::text) u using (queue_name)",
        (queue, queue),
        lambda rows: [ConsumerInfo(*row) for row in rows],
    )


def queue_stats() -> Call[list[QueueStats]]:
    """The key figures of all queues."""
    return Call(
        "select queue_name, depth, oldest_msg_age, consumers, events_per_sec::float8, "
        "rotation_age, ticker_paused, last_tick_time, dlq_count from pgque.queue_stats()",
        (),
        lambda rows: [QueueStats(*row) for row in rows],
    )


def health() -> Call[list[HealthCheck]]:
    """All checks, those of the database first."""
    return Call(
        "select queue_name, check_name, status, detail from pgque.queue_health()",
        (),
        lambda rows: [HealthCheck(*row) for row in rows],
    )


def metrics() -> Call[list[Metric]]:
    """All metrics."""
    return Call(
        "select metric_name, metric_type, value::float8, labels from pgque.otel_metrics()",
        (),
        lambda rows: [Metric(*row) for row in rows],
    )
