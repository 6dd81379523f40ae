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


def unfinished_events(queue: str, consumer: str | None) -> Call[dict[str, int]]:
    """At most how many events each consumer has before it; 1 for a batch that may be empty.

    Args:
        queue: the queue's name.
        consumer: this one with its subconsumers and slots; None for all.
    """
    return Call(
        "select i.consumer_name, greatest(coalesce(i.pending_events, 0),"
        " (i.current_batch is not null)::int) + coalesce(u.events, 0) + coalesce(h.held_events, 0)"
        " from (values (%s::text, %s::text)) w (queue, consumer)"
        " cross join lateral pgque.get_consumer_info(w.queue) i"
        " left join lateral pgque.unticked_events(w.queue) u using (queue_name)"
        " left join pgque.partition_slot_status h on h.queue_name = w.queue"
        " and i.consumer_name = format('%%s#%%s/%%s', h.consumer, h.slot, h.n)"
        " where w.consumer is null or w.consumer in (i.consumer_name, h.consumer)"
        " or exists (select from pgque.queue q"
        " join pgque.subscription s on s.sub_queue = q.queue_id"
        " join pgque.consumer c on c.co_id = s.sub_consumer"
        " join pgque.subscription m on m.sub_id = s.sub_main"
        " join pgque.consumer mc on mc.co_id = m.sub_consumer"
        " where q.queue_name = w.queue and c.co_name = i.consumer_name"
        " and mc.co_name = w.consumer)",
        (queue, consumer),
        lambda rows: dict(rows),
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
