"""Measures the functions for statistics and health with a thousand queues."""

from typing import LiteralString

from benchmarks.measure import Contender, Result, medians, timed
from benchmarks.servers import Connection, connect, prepared, value

_QUEUES = 1000
_CONSUMERS = 3
_TICKS = 2
_EVENTS = 10
_TARGET_MS = 100

_CALLS: tuple[tuple[str, LiteralString], ...] = (
    ("queue_stats()", "select count(*) from pgque.queue_stats()"),
    ("consumer_stats()", "select count(*) from pgque.consumer_stats()"),
    ("queue_health()", "select count(*) from pgque.queue_health()"),
    ("otel_metrics()", "select count(*) from pgque.otel_metrics()"),
    ("stuck_consumers()", "select count(*) from pgque.stuck_consumers('0')"),
    ("in_flight(queue)", "select count(*) from pgque.in_flight('watched_1')"),
    (
        "throughput(queue, 1 hour, 1 minute)",
        "select count(*) from pgque.throughput('watched_1', '1 hour', '1 minute')",
    ),
    (
        "error_rate(queue, 1 hour, 1 minute)",
        "select count(*) from pgque.error_rate('watched_1', '1 hour', '1 minute')",
    ),
)


def measure(url: str, *, rounds: int) -> list[Result]:
    """Measures with a thousand queues of three consumers each."""
    with connect(url) as connection:
        _prepare(connection)
        calls = {name: prepared(connection, sql) for name, sql in _CALLS}
        contenders = [
            Contender(name, lambda call=call: timed(call, 3)) for name, call in calls.items()
        ]
        costs = medians(contenders, rounds)
        for number in range(1, _QUEUES + 1):
            value(connection, "select pgque.drop_queue(%s, true)", f"watched_{number}")
    return [
        Result(
            f"{name}, {_QUEUES} queues",
            "milliseconds",
            costs[name] * 1000,
            "<=",
            _TARGET_MS,
            "",
        )
        for name, _ in _CALLS
    ]


def _prepare(connection: Connection) -> None:
    """Creates queues with events, ticks, finished and open batches, retries and dead letters."""
    for number in range(1, _QUEUES + 1):
        queue = f"watched_{number}"
        value(connection, "select pgque.create_queue(%s)", queue)
        value(connection, "select pgque.set_queue_config(%s, 'ticker_idle_period', '0')", queue)
        for consumer in range(1, _CONSUMERS + 1):
            value(connection, "select pgque.register_consumer(%s, %s)", queue, f"c{consumer}")
    for _ in range(_TICKS):
        value(
            connection,
            "select count(pgque.send(queue_name, 'x'::text)) from pgque.queue,"
            " generate_series(1, %s) where queue_name like 'watched_%%'",
            _EVENTS,
        )
        value(connection, "select pgque.ticker()")
        for number in range(1, _QUEUES + 1):
            _consume(connection, f"watched_{number}")


def _consume(connection: Connection, queue: str) -> None:
    """The first consumer finishes a batch, with failures; the second leaves its first one open."""
    batch = value(connection, "select pgque.next_batch(%s, 'c1')", queue)
    ids = "select array_agg(msg_id) from (select ev_id from pgque.get_batch_events(%s)) e (msg_id)"
    failed = value(connection, ids, batch)[:2]
    value(connection, "select pgque.nack_batch(%s, %s)", batch, failed[:1])
    value(connection, "select pgque.dead_letter_batch(%s, %s, 'bad')", batch, failed[1:])
    value(connection, "select pgque.finish_batch(%s)", batch)
    value(connection, "select pgque.next_batch(%s, 'c2')", queue)
