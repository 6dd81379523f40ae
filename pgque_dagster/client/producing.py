"""The part of the client that sends events."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from . import calls
from .calls.call import Call, Steps
from .encoding import Payload
from .models import Event, ScheduledEvent, Sent
from .operation import operation

DEFAULT_KEY_TTL = timedelta(hours=1)


class Producing:
    """The operations that send events."""

    @operation
    def send(
        self,
        queue: str,
        payload: Payload,
        *,
        type: str = "default",
        partition_key: str | None = None,
    ) -> Call[int]:
        """Sends one event.

        Args:
            queue: the queue's name.
            payload: text, stored unchanged; bytes, which `Message.as_bytes` returns; or a dict,
                list, dataclass or Pydantic model, stored as JSON.
            type: the event's type.
            partition_key: partitioned consumers handle events with the same key in order.

        Returns:
            The event's id.

        Example:
            >>> client.send("orders", {"id": 1, "total": 4.5}, type="order.created")
            1
        """
        return calls.publishing.send(queue, payload, type, partition_key)

    @operation
    def send_idem(
        self,
        queue: str,
        payload: Payload,
        idempotency_key: str,
        *,
        type: str = "default",
        ttl: timedelta = DEFAULT_KEY_TTL,
        partition_key: str | None = None,
    ) -> Call[Sent]:
        """Sends one event, unless an event with this key was sent within its `ttl`.

        Args:
            queue: the queue's name.
            payload: as for `send`.
            idempotency_key: 1 to 1000 bytes.
            type: the event's type.
            ttl: how long the key is remembered.
            partition_key: partitioned consumers handle events with the same key in order.

        Example:
            >>> client.send_idem("orders", {"id": 1}, "order-1").deduped
            False
            >>> client.send_idem("orders", {"id": 1}, "order-1").deduped
            True
        """
        return calls.publishing.send_idem(queue, payload, idempotency_key, type, ttl, partition_key)

    @operation
    def send_batch(
        self, queue: str, payloads: Sequence[Payload | Event], *, type: str = "default"
    ) -> Call[list[int]]:
        """Sends many events in one statement, all or none; returns their ids in order.

        Args:
            queue: the queue's name.
            payloads: as for `send`, or an `Event`, which may have a type and a key of its own.
            type: the type of the others.

        Example:
            >>> paid = Event({"id": 1}, type="order.paid", key="customer-7")
            >>> client.send_batch("orders", [{"id": 1}, paid], type="order.created")
            [1, 2]
        """
        return calls.publishing.send_batch(queue, payloads, type)

    @operation
    def copy_events(
        self, queue: str, payloads: Iterable[Payload | Event], *, type: str = "default"
    ) -> Steps[int]:
        """Sends many events by COPY, all or none; returns how many.

        It is the fastest way to send thousands of events, and holds only some of them in memory.

        Args:
            queue: the queue's name.
            payloads: as for `send_batch`; read one after another.
            type: the type of those without one.

        Example:
            >>> client.copy_events("orders", ({"id": number} for number in range(1000)))
            1000
        """
        return calls.publishing.copy_events(queue, payloads, type)

    @operation
    def send_at(
        self, queue: str, payload: Payload, at: datetime, *, type: str = "default"
    ) -> Call[int]:
        """Publishes one event at a given time, or at once if that time is past.

        Args:
            queue: the queue's name.
            payload: as for `send`.
            at: the time of delivery, with a time zone. Maintenance delivers the event.
            type: the event's type.

        Returns:
            The id of the scheduled entry, for `cancel_scheduled`, or the id of the event if it was
            sent at once. Entry ids are 2**52 or higher; event ids are lower.

        Raises:
            InvalidArgument: if the time has no zone.
        """
        return calls.publishing.send_at(queue, payload, at, type)

    @operation
    def cancel_scheduled(self, entry_id: int) -> Call[bool]:
        """Cancels an entry of `send_at`; returns False if it was delivered or cancelled before."""
        return calls.publishing.cancel_scheduled(entry_id)

    @operation
    def list_scheduled(self, queue: str, limit: int = 100) -> Call[list[ScheduledEvent]]:
        """Returns a queue's scheduled events, the earliest first."""
        return calls.publishing.list_scheduled(queue, limit)
