"""The queue mover: moves events to a queue of another database, or of the same one."""

from collections.abc import Sequence
from typing import Any

from .. import producing, queues
from ..client import Client
from ..connection import connect
from ..consumer import Delivery
from ..errors import InvalidArgument, QueueNotFound
from ..queues import with_near_names
from ..rights import Connection
from .consumer import RemoteConsumer

# Public functions, so that it needs no role of pgque in the target but pgque_writer.
_DATABASE = (
    "select pg_postmaster_start_time(), oid from pg_database where datname = current_database()"
)


class QueueMover(RemoteConsumer):
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
        keep_time: keeps the time at which each event was sent. This needs `pgque_admin` in the
            target, because other roles may not choose an event's time.
        **options: those of `RemoteConsumer`, except `tracking`.
    """

    def __init__(
        self,
        url: str,
        queue: str,
        name: str,
        *,
        target: str | None = None,
        target_queue: str | None = None,
        keep_time: bool = False,
        **options: Any,
    ) -> None:
        refuse_tracking(self, options)
        super().__init__(url, queue, name, target=target, **options)
        self._target_queue = target_queue or queue
        self._keep_time = keep_time

    def prepare_target(self, connection: Connection) -> None:
        """Checks that the target queue takes events, and is not a queue that is moved."""
        queue, client = self._target_queue, Client(connection)
        with connect(self._url) as own:
            is_same = own.execute(_DATABASE).fetchone() == connection.execute(_DATABASE).fetchone()
        if is_same and queue == self.queue:
            raise InvalidArgument(
                f"{self.name} would send the events of queue {queue} to that queue again, "
                "without an end",
                "Choose another target queue, or another database.",
            )
        try:
            # In a savepoint, so that the names can be read if it fails.
            with client.transaction():
                client.run(producing.current_event_table(queue))
        except QueueNotFound as error:
            names = client.run(queues.queue_names())
            raise with_near_names(error, names) from error.__cause__

    def apply_batch(self, messages: Sequence[Delivery], connection: Connection) -> None:
        """Sends the events of a batch to the target queue."""
        client = Client(connection)
        if messages and self._keep_time:
            client.run(producing.insert_messages(self._target_queue, messages))
        elif messages:
            client.run(producing.copy_messages(self._target_queue, messages))


def refuse_tracking(consumer: RemoteConsumer, options: dict[str, Any]) -> None:
    """Refuses the option `tracking` for consumers that apply whole batches.

    Raises:
        InvalidArgument: if it is given.
    """
    if "tracking" in options:
        raise InvalidArgument(
            f"a {type(consumer).__name__} tracks batches, because it applies each as a whole",
            "Leave out tracking.",
        )
