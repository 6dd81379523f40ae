"""A queue whose ticks have past times, so that tests need not wait for the end of an hour."""

from collections.abc import Sequence
from datetime import UTC, datetime

import psycopg

from pgque_dagster.client import Client
from tests.support.queues.events import tick


def send_at_hours(client: Client, payloads: Sequence[Sequence[str]], queue: str = "orders") -> None:
    """Publishes the events of the hours from midnight on, at half past, and ticks once more.

    Tick 1 is of midnight, so the windows are complete and begin with the queue.
    """
    set_time_of_last_tick(client, "00:00", queue)
    for hour, texts in enumerate([*payloads, []]):
        client.send_batch(queue, list(texts))
        tick_at(client, f"{hour:02}:30", queue)


def tick_at(client: Client, time: str, queue: str = "orders") -> None:
    """Ticks at a time of 2026-01-01, such as 03:30."""
    tick(client, queue)
    set_time_of_last_tick(client, time, queue)


def set_time_of_last_tick(client: Client, time: str, queue: str = "orders") -> None:
    """Moves the newest tick to a time of 2026-01-01."""
    moment = datetime.fromisoformat(f"2026-01-01T{time}").replace(tzinfo=UTC)
    with psycopg.connect(client.url, autocommit=True) as connection:
        connection.execute(
            "update pgque.tick_log set tick_time = %s where (tick_queue, tick_id) = "
            "(select tick_queue, max(tick_id) from pgque.tick"
            " join pgque.queue on queue_id = tick_queue where queue_name = %s group by tick_queue)",
            (moment, queue),
        )
