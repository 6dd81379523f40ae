"""The queue splitter: sends the events of a queue to other queues, by type or by a function."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..consumer import Delivery, HandlerMissing
from ..errors import InvalidArgument
from ..models import Message
from ..table_rights import Connection
from .consumer import RemoteConsumer
from .mover import check_target_queue, is_same_database, refuse_tracking, send_messages

Route = Callable[[Message], str | Sequence[str]]


class QueueSplitter(RemoteConsumer):
    """Sends each event of a queue to other queues, exactly once to each.

    What stays of an event, and the rights in the target, are as for `QueueMover`.

    Args:
        url: the database of the queue.
        queue: the queue's name, or several.
        name: the consumer's name.
        routes: the queues by type of event, where a type may have several; or a function that
            returns the queue of an event, or several. An event goes nowhere only if its type has,
            or the function returns, an empty list.
        other: the queue of events whose type is not in `routes`. Without it, such an event makes
            `run` raise `HandlerMissing`, and nothing of its batch is acked.
        target: the database of the target queues; None for the same database.
        keep_time: as for `QueueMover`.
        **options: those of `RemoteConsumer`, except `tracking`.
    """

    def __init__(
        self,
        url: str,
        queue: str | Sequence[str],
        name: str,
        *,
        routes: Mapping[str, str | Sequence[str]] | Route,
        other: str | None = None,
        target: str | None = None,
        keep_time: bool = False,
        **options: Any,
    ) -> None:
        refuse_tracking(self, options)
        super().__init__(url, queue, name, target=target, **options)
        if callable(routes) and other is not None:
            raise InvalidArgument(
                "a function chooses the queue of each event, so there are no others",
                "Have the function return that queue, and leave out other.",
            )
        self._routes = routes
        self._other = other
        self._keep_time = keep_time
        self._is_same = target is None

    def prepare_target(self, connection: Connection) -> None:
        """Checks that the target queues exist, as far as they are known."""
        self._is_same = is_same_database(connection, self._url)
        known = [] if self._other is None else [self._other]
        if isinstance(self._routes, Mapping):
            known += [queue for found in self._routes.values() for queue in _listed(found)]
        for queue in dict.fromkeys(known):
            check_target_queue(connection, self, queue, is_same=self._is_same)

    def apply_batch(self, messages: Sequence[Delivery], connection: Connection) -> None:
        """Sends the events of a batch to their queues."""
        by_queue: dict[str, list[Message]] = {}
        for message in messages:
            for queue in dict.fromkeys(self._route(message)):
                by_queue.setdefault(queue, []).append(message)
        for queue, found in by_queue.items():
            if callable(self._routes):
                check_target_queue(connection, self, queue, is_same=self._is_same)
            send_messages(connection, queue, found, keep_time=self._keep_time)

    def _route(self, message: Delivery) -> Sequence[str]:
        if callable(self._routes):
            found = self._routes(message)
            if isinstance(found, str | list | tuple):
                return _listed(found)
            raise InvalidArgument(
                f"the function for routes returned {found!r} for event {message.msg_id} of "
                f"queue {message.queue}; nothing of its batch was applied or acked",
                "Return the name of a queue, a list of names, or [] to leave the event out.",
            )
        queues = self._routes.get(message.type or "", self._other)
        if queues is None:
            raise HandlerMissing(
                f'event {message.msg_id} of queue {message.queue} is of type "{message.type}", '
                "which routes does not name; nothing of its batch was applied or acked",
                "Add the type to routes, with [] to leave it out, or pass other.",
            )
        return _listed(queues)


def _listed(queues: str | Sequence[str]) -> Sequence[str]:
    return [queues] if isinstance(queues, str) else queues
