"""Questions to the metrics, and builders of what they tell about."""

from decimal import Decimal
from typing import Any

from tests.support.queues.sql import Connection


def metrics(db: Connection, name: str) -> dict[tuple[str, ...], Decimal]:
    """All values of a metric, by the values of its labels in the order of their names."""
    found = db.rows("select labels, value from pgque.otel_metrics() where metric_name = %s", name)
    return {tuple(labels[key] for key in sorted(labels)): number for labels, number in found}


def metric(db: Connection, name: str, *labels: str) -> int:
    """One value; 0 where the metric does not exist with these labels."""
    return int(metrics(db, name).get(labels, 0))


def counters(db: Connection, queue: str = "q") -> tuple[int, ...]:
    """What a queue counted: sent, acked, nacked and dead-lettered."""
    names = ("sent_total", "acked_total", "nacked_total", "dead_lettered_total")
    return tuple(metric(db, f"pgque.message.{name}", queue) for name in names)


def consumer_counters(
    db: Connection, consumer: str = "c", queue: str = "q"
) -> tuple[int, ...] | None:
    """What a consumer counted: acked, nacked and dead-lettered; None when it is not registered."""
    names = ("acked_total", "nacked_total", "dead_lettered_total")
    found = [metrics(db, f"pgque.consumer.{name}").get((consumer, queue)) for name in names]
    return None if None in found else tuple(int(number or 0) for number in found)


def work(db: Connection, queue: str = "q", consumer: str = "c") -> None:
    """One batch of five events: one is retried, two are given up."""
    batch = db.open_batch(*"abcde", queue=queue, consumer=consumer)
    ids = [row[0] for row in db.rows("select ev_id from pgque.get_batch_events(%s)", batch)]
    db.value("select pgque.nack_batch(%s, %s, '1 hour')", batch, ids[:1])
    db.value("select pgque.dead_letter_batch(%s, %s, 'bad')", batch, ids[1:3])
    db.finish(batch)


def age_ticks(db: Connection, age: str, queue: str = "q") -> None:
    """Makes all ticks of a queue older, and what stands on them."""
    db.execute(
        "update pgque.tick_log set tick_time = tick_time - %s::interval where tick_queue ="
        " (select queue_id from pgque.queue where queue_name = %s)",
        [age, queue],
    )


def age_events(db: Connection, age: str) -> None:
    """Makes all events older."""
    db.execute("update pgque.event set ev_time = ev_time - %s::interval", [age])


def age_positions(db: Connection, age: str) -> None:
    """Makes all signs of life and leases of consumers older."""
    db.execute(
        "update pgque.position_log set sub_active = sub_active - %s::interval,"
        " lease_until = lease_until - %s::interval",
        [age, age],
    )


def bloat_counters(db: Connection) -> None:
    """Adds counts of nothing, until there are enough for a compaction."""
    db.execute(
        "insert into pgque.counter_log (queue_id, sub_id)"
        " select sub_queue, sub_id from pgque.subscription_base, generate_series(1, 2000)"
    )


def compact_counters(db: Connection) -> int:
    bloat_counters(db)
    return db.value("select pgque.maint_compact_counters()")


def health(db: Connection, queue: str | None = "q") -> dict[str, tuple[str, str]]:
    """The checks of a queue, or of the database: status and detail by name."""
    found: list[tuple[Any, ...]] = db.rows(
        "select check_name, status, detail from pgque.queue_health()"
        " where queue_name is not distinct from %s",
        queue,
    )
    return {name: (status, detail) for name, status, detail in found}
