"""US-9: an operator sees at a glance which queue is well, which lags, and which loses messages."""

import time

import pytest

from tests.acceptance.conftest import Hire
from tests.support.stories import Operator, Producer, Worker

OF_A_QUEUE = {
    "pgque.queue.depth": "gauge",
    "pgque.queue.oldest_message_age_seconds": "gauge",
    "pgque.message.sent_total": "counter",
    "pgque.message.dead_lettered": "gauge",
}
OF_A_CONSUMER = {
    "pgque.message.acked_total": "counter",
    "pgque.message.nacked_total": "counter",
    "pgque.consumer.lag_seconds": "gauge",
    "pgque.consumer.pending_events": "gauge",
}
LAG_SECONDS = 2
BEHIND = f"{LAG_SECONDS} seconds"


@pytest.fixture
def slowpoke(operator: Operator, producer: Producer, hire: Hire) -> Worker:
    """One of three consumers: of three queues one is well, one lags, one has a dead letter."""
    workers = {}
    for queue in ("well", "lagging", "failing"):
        operator.creates_queue(queue)
        workers[queue] = hire(queue, "consumer")
        workers[queue].subscribes()
        operator.ticks(queue)

    producer.sends("lagging", "x", "y", "z")
    operator.ticks("lagging")
    time.sleep(LAG_SECONDS)

    producer.sends("failing", "broken", "fine")
    operator.ticks("failing")
    broken, _ = workers["failing"].receives()
    workers["failing"].asks(
        "select pgque.dead_letter_batch(%s, %s, 'bad')", broken.batch_id, [broken.msg_id]
    )
    workers["failing"].acks(broken)

    producer.sends("well", "a", "b")
    for queue in ("well", "lagging"):
        operator.ticks(queue)
    workers["well"].works_off()
    return workers["lagging"]


def test_the_statistics_tell_the_queues_apart(operator: Operator, slowpoke: Worker) -> None:
    queues = operator.asks(
        "select queue_name, depth, consumers, dlq_count, events_per_sec > 0"
        " from pgque.queue_stats() order by 1"
    )
    assert queues == [
        ("failing", 0, 1, 1, True),
        ("lagging", 3, 1, 0, False),
        ("well", 0, 1, 0, True),
    ]

    consumers = operator.asks(
        "select queue_name, pending_events, batch_active, lag - min(lag) over () >= %s::interval"
        " from pgque.consumer_stats() order by 1",
        BEHIND,
    )
    assert consumers == [
        ("failing", 0, False, False),
        ("lagging", 3, False, True),
        ("well", 0, False, False),
    ]


def test_health_goes_from_ok_by_warning_to_critical(operator: Operator, slowpoke: Worker) -> None:
    def health_at(share_of_period: float) -> str:
        """Of the consumer, when it lags behind by that share of the rotation period."""
        operator.asks(
            "select pgque.set_queue_config('lagging', 'rotation_period', (lag / %s)::text)"
            " from pgque.consumer_stats() where queue_name = 'lagging'",
            share_of_period,
        )
        return operator.health("lagging")["consumer_lag:consumer"]

    assert [health_at(share) for share in (0.01, 0.55, 2)] == ["ok", "warning", "critical"]

    # The queue that is well has nothing to complain of.
    assert set(operator.health("well").values()) == {"ok"}


def test_the_stuck_consumer_is_found(operator: Operator, slowpoke: Worker) -> None:
    stuck = "select queue_name, consumer_name from pgque.stuck_consumers({}::interval)"
    almost_its_lag = "(select max(lag) - interval '1 second' from pgque.consumer_stats())"
    assert operator.asks(stuck.format(almost_its_lag)) == [("lagging", "consumer")]
    assert operator.asks(stuck.format("'1 hour'")) == []


def test_the_metrics_have_the_names_and_types_that_dashboards_know(
    operator: Operator, slowpoke: Worker
) -> None:
    metrics = operator.asks(
        "select metric_name, metric_type, value, labels from pgque.otel_metrics()"
    )
    types = {name: kind for name, kind, _, _ in metrics}
    assert OF_A_QUEUE.items() | OF_A_CONSUMER.items() <= types.items()

    def metric(name: str, queue: str) -> float:
        (found,) = [v for n, _, v, labels in metrics if n == name and labels["queue"] == queue]
        return float(found)

    assert metric("pgque.queue.depth", "lagging") == 3
    assert metric("pgque.message.dead_lettered", "failing") == 1
    assert metric("pgque.consumer.lag_seconds", "lagging") >= LAG_SECONDS
    assert metric("pgque.consumer.pending_events", "lagging") == 3
    assert metric("pgque.message.sent_total", "well") == 2
    assert metric("pgque.message.acked_total", "well") == 2
