"""Runs a consumer in a thread until something has happened."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pgque_dagster.client import Client, Consumer
from pgque_dagster.client.calls.ticks import next_tick
from tests.support.queues import PATIENCE_SECONDS, Connection, tick


def send(client: Client, db: Connection, *events: Any) -> None:
    """Sends events as one batch."""
    client.send_batch("q", events)
    tick(db)


def is_acked(client: Client, queue: str = "q", consumer: str = "c") -> bool:
    """Whether the consumer has finished all batches."""
    with Client(client.url) as another:
        return (
            another.lease_info(queue, consumer) is None
            and another.run(next_tick(queue, consumer)) is None
        )


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


@contextmanager
def running(consumer: Consumer) -> Iterator[list[BaseException]]:
    """Runs it for the block, and yields the errors with which it ended."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            consumer.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield errors
    finally:
        consumer.stop()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def run_until(consumer: Consumer, condition: Callable[[], bool]) -> None:
    """Runs it until the condition holds; it must not end with an error."""
    with running(consumer) as errors:
        wait_until(lambda: bool(errors) or condition())
    if errors:
        raise errors[0]


def run_until_error(consumer: Consumer) -> BaseException:
    """Runs it until it ends with an error."""
    with running(consumer) as errors:
        wait_until(lambda: bool(errors))
    return errors[0]
