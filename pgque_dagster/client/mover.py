"""The queue mover: moves events to a queue of another database, or of the same one."""

from collections.abc import Sequence
from typing import Any

from . import producing, queues
from .client import Client
from .connection import connect
from .consumer import Consumer, Delivery
from .errors import InvalidArgument, QueueNotFound
from .queues import with_near_names
from .rights import Connection

# Public functions, so that it needs no role of pgque in the target but pgque_writer.
_DATABASE = (
    "select pg_postmaster_start_time(), oid from pg_database where datname = current_database()"
)


class QueueMover(Consumer):
    """Moves the events of a queue to a queue of another database, each exactly once.

    Order, types, payloads, keys and the other extra fields stay as they are. The events get new
    ids, and the time at which they are moved. An event that was nacked or replayed for this
    consumer alone is moved when it is delivered again. The role needs `pgque_writer` in the target.

    Args:
        url: the database of the queue.
        queue: the queue's name.
        name: the consumer's name.
        target: the database of the target queue; None for the same database.
        target_queue: the queue to move to; None for one of the same name.
        **options: those of `Consumer`, except `apply`.
    """

    def __init__(
        self,
        url: str,
        queue: str,
        name: str,
        *,
        target: str | None = None,
        target_queue: str | None = None,
        **options: Any,
    ) -> None:
        to = target_queue or queue
        self._to = (target or url, to)

        def move(messages: Sequence[Delivery], connection: Connection) -> None:
            if messages:
                Client(connection).run(producing.copy_messages(to, messages))

        super().__init__(url, queue, name, target=target, apply=move, **options)

    def run(self) -> None:
        """Moves batches, as `Consumer.run` handles them.

        Raises:
            QueueNotFound: if the target has no such queue.
            CallRefused: if it takes no events.
            InvalidArgument: if it is the queue itself.
        """
        target, to = self._to
        with connect(target) as connection:
            if to == self.queue and _is_same_database(self._url, connection):
                raise InvalidArgument(
                    f"{self.name} would send the events of queue {to} to that queue again, without "
                    "an end",
                    "Choose another target queue, or another database.",
                )
            _check_queue(connection, to)
        super().run()


def _is_same_database(url: str, connection: Connection) -> bool:
    with connect(url) as own:
        return own.execute(_DATABASE).fetchone() == connection.execute(_DATABASE).fetchone()


def _check_queue(connection: Connection, queue: str) -> None:
    """Checks that a queue of the target takes events."""
    client = Client(connection)
    try:
        # In a savepoint, so that the names can be read if it fails.
        with client.transaction():
            client.run(producing.current_event_table(queue))
    except QueueNotFound as error:
        names = client.run(queues.queue_names())
        raise with_near_names(error, names) from error.__cause__
