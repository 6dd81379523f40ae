"""A queue with a consumer, which runs in a thread until something has happened."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from pgque_dagster.client import Batch, Client, Consumer, Message
from tests.support.queues.sql import Connection
from tests.support.runner.waiting import in_threads, wait_until

DONE = "create table done (nr serial, id text)"


def send(client: Client, db: Connection, *events: Any) -> None:
    """Sends events as one batch."""
    client.send_batch("q", events)
    db.tick()


def expire_leases(db: Connection) -> None:
    """Ends all leases as their time would."""
    db.execute(
        "update pgque.position_log set lease_until = now() - interval '1 second'"
        " where lease_until is not null"
    )


@contextmanager
def running(consumer: Consumer) -> Iterator[list[BaseException]]:
    """Runs it for the block, and yields the errors with which it ended."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            consumer.run()
        except BaseException as error:
            errors.append(error)

    with in_threads(run, stop=consumer.stop):
        yield errors


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


class Queue:
    """The queue q with the consumer c, and the table `done` for what its handlers do."""

    def __init__(self, client: Client, db: Connection) -> None:
        self.client = client
        self.url = client.url
        self.db = db

    def send(self, *events: Any) -> None:
        """Sends events as one batch."""
        send(self.client, self.db, *events)

    def consumer(self, **options: Any) -> Consumer:
        """The consumer c, which looks often for batches."""
        brief = timedelta(milliseconds=50)
        options = {"queue": "q", "name": "c", "poll_interval": brief, **options}
        return Consumer(self.url, **options)

    def is_acked(self) -> bool:
        """Whether the consumer has finished all batches."""
        question = (
            "select not exists (select from pgque.get_lease_info('q', 'c'))"
            " and pgque.next_tick('q', 'c', null, null) is null"
        )
        found: bool = self.db.value(question)
        return found

    def run(self, consumer: Consumer) -> None:
        """Runs it until it has acked all."""
        run_until(consumer, self.is_acked)

    def tick(self) -> int:
        return self.db.tick()

    def claim(self, owner: str = "me", **options: Any) -> Batch:
        claimed = self.client.claim("q", "c", owner=owner, **options)
        assert claimed is not None
        return claimed

    def receive(self) -> list[Message]:
        """The events of the next batch, if there is one."""
        while batch := self.client.claim("q", "c", owner="a reader"):
            if messages := batch.events():
                batch.release()
                return messages
            batch.ack()
        return []

    def drain(self) -> list[str]:
        """The payloads of all batches, which it finishes."""
        return self.db.drain()

    def sent(self) -> list[str]:
        """The payloads in the queue, in a batch or not."""
        return self.payloads("event")

    def retried(self) -> list[str]:
        """The payloads that wait for another delivery."""
        return self.payloads("retry_queue")

    def payloads(self, table: str) -> list[str]:
        """The payloads in a table of the schema."""
        found = self.db.rows(f"select ev_data from pgque.{table} order by ev_id")
        return [payload for (payload,) in found]

    def done(self) -> list[str]:
        return done(self.db)


def done(db: Connection) -> list[str]:
    """What handlers wrote, in that order."""
    return [text for (text,) in db.rows("select id from done order by nr")]


def noted_waits(consumer: Consumer) -> threading.Event:
    """What is set once the consumer has found nothing to do."""
    waits = threading.Event()
    wait: Callable[..., None] = consumer._wait

    def waiting(connection: Any) -> None:
        waits.set()
        wait(connection)

    consumer._wait = waiting  # type: ignore[method-assign]
    return waits


def collect(consumer: Consumer, *types: str, **options: Any) -> list[str | None]:
    """Adds a handler that keeps the payloads, and returns them."""
    found: list[str | None] = []
    consumer.on(*types, **options)(lambda message: found.append(message.payload))
    return found
