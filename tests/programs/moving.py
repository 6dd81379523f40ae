"""A program that applies batches in another database, and signals itself at a point.

python -m tests.programs.moving <kind> <url> <target> <point> <signal> <file>
"""

import os
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from pgque_dagster.client import Batch, Client, Consumer, Delivery
from pgque_dagster.client.consumer.delivery import FailedMessages
from pgque_dagster.client.last_batch import LastBatch, Span

BEFORE_COMMIT, BEFORE_ACK = "before the target's commit", "between the commit and the ack"


def make(kind: str, url: str, target: str, **options: Any) -> Consumer:
    """The consumer c of the queue q; events `bad` fail if `fails`."""
    fails = options.pop("fails", False)
    brief = timedelta(milliseconds=50)
    options = {"poll_interval": brief, "retry_after": timedelta(0), **options}
    if kind == "mover":
        return mover(url, target=target, **options)
    consumer = Consumer(url, "q", "c", target=target, **options)

    @consumer.on()
    def handle(message: Delivery, connection: Any) -> None:
        connection.execute("insert into done (id) values (%s)", (message.payload,))
        if fails and message.payload == "bad":
            raise ValueError("it is bad")

    return consumer


def mover(url: str, to: str = "q", **options: Any) -> Consumer:
    """The consumer c of the queue q, which moves events to a queue."""

    def move(messages: Sequence[Delivery], connection: Any) -> None:
        Client(connection).copy_events(to, messages)

    return Consumer(url, "q", "c", apply=move, **options)


def watch(point: str, number: signal.Signals, reached: Path) -> None:
    """Sends this process a signal when it reaches the point for the first time."""

    def at(here: str) -> None:
        if here == point and not reached.exists():
            reached.touch()
            os.kill(os.getpid(), number)

    record, finish = LastBatch.record, Consumer._finish

    def recording(self: LastBatch, batch: Span, failed: str | None) -> None:
        record(self, batch, failed)
        at(BEFORE_COMMIT)

    def finishing(self: Consumer, batch: Batch, failed: FailedMessages) -> None:
        at(BEFORE_ACK)
        finish(self, batch, failed)

    for owner, name, function in (
        (LastBatch, "record", recording),
        (Consumer, "_finish", finishing),
    ):
        setattr(owner, name, function)


def main() -> None:
    kind, url, target, point, number, reached = sys.argv[1:]
    watch(point, signal.Signals(int(number)), Path(reached))
    make(kind, url, target, fails=True).run()


if __name__ == "__main__":
    main()
