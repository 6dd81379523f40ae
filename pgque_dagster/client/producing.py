"""Sending events: one, many by one statement or COPY, or scheduled for later."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from .encoding import Payload, encode
from .errors import InvalidArgument
from .models import Event, Message, ScheduledEvent, Sent
from .operation import Call, Copy, Steps, first, operation
from .ranges import check_interval

DEFAULT_KEY_TTL = timedelta(hours=1)


class Producing:
    """The methods of a client that send events."""

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
        return send_call(queue, payload, type, partition_key)

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
        check_interval("ttl", ttl)
        return Call(
            "select event_id, deduped from pgque.send_idem("
            "%s::text, %s::text, %s::text, %s::text, %s::interval, %s::text)",
            (queue, type, encode(payload), idempotency_key, ttl, partition_key),
            lambda rows: Sent(*rows[0]),
        )

    @operation
    def send_batch(
        self, queue: str, payloads: Sequence[Payload | Event], *, type: str = "default"
    ) -> Call[list[int]]:
        """Sends many events in one statement, all or none; returns their ids in order.

        Args:
            queue: the queue's name.
            payloads: as for `send`, or an `Event`, which may have its own type and key.
            type: the type of the others.

        Example:
            >>> paid = Event({"id": 1}, type="order.paid", key="customer-7")
            >>> client.send_batch("orders", [{"id": 1}, paid], type="order.created")
            [1, 2]
        """
        rows = [_fields_of(payload, type) for payload in payloads]
        if all(row[0] == type and row[2] is None for row in rows):
            return Call(
                # Binary format: in text format, JSON in an array is mostly escape characters.
                "select pgque.send_batch(%s::text, %s::text, %b::text[])",
                (queue, type, [row[1] for row in rows]),
                first,
            )
        return Call(
            "select pgque.insert_event(%s::text, e.type, e.data, e.key, null, null, null) "
            "from unnest(%b::text[], %b::text[], %b::text[]) with ordinality "
            "as e (type, data, key, nr) order by e.nr",
            (queue, *([row[column] for row in rows] for column in range(3))),
            lambda rows: [row[0] for row in rows],
        )

    @operation
    def copy_events(
        self, queue: str, payloads: Iterable[Payload | Event | Message], *, type: str = "default"
    ) -> Steps[int]:
        """Sends many events by COPY, all or none; returns how many.

        It is the fastest way to send thousands of events, and holds only some of them in memory.

        Args:
            queue: the queue's name.
            payloads: as for `send_batch`, or a `Message`, which is sent with its type and all its
                extra fields. They are read one after another.
            type: the type of payloads without one.

        Example:
            >>> client.copy_events("orders", ({"id": number} for number in range(1000)))
            1000
        """
        # Read in the transaction of the COPY, because rotation closes tables to writers.
        table = yield Call("select pgque.current_event_table(%s)", (queue,), first)
        columns = "ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4"
        rows = (row_of(payload, type) for payload in payloads)
        count: int = yield Copy(f"copy {table} ({columns}) from stdin", rows)
        return count

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
        if at.tzinfo is None:
            raise InvalidArgument(
                f"the time of delivery {at} has no time zone",
                "Pass an aware datetime, such as datetime.now(UTC) + timedelta(hours=1).",
            )
        return Call(
            "select pgque.send_at(%s::text, %s::text, %s::text, %s::timestamptz)",
            (queue, type, encode(payload), at),
            first,
        )

    @operation
    def cancel_scheduled(self, entry_id: int) -> Call[bool]:
        """Cancels an entry of `send_at`; returns False if it was delivered or cancelled before."""
        return Call("select pgque.cancel_scheduled(%s)", (entry_id,), first)

    @operation
    def list_scheduled(self, queue: str, limit: int = 100) -> Call[list[ScheduledEvent]]:
        """Returns a queue's scheduled events, the earliest first."""
        return Call(
            "select de_id, de_deliver_at, de_type, de_data from pgque.list_scheduled(%s, %s)",
            (queue, limit),
            lambda rows: [ScheduledEvent(*row) for row in rows],
        )


def send_call(queue: str, payload: Payload, type: str, partition_key: str | None) -> Call[int]:
    """Returns the call that sends one event."""
    params = (queue, type, encode(payload))
    if partition_key is not None:
        return Call(
            "select pgque.send(%s::text, %s::text, %s::text, %s::text)",
            (*params, partition_key),
            first,
        )
    return Call("select pgque.send(%s::text, %s::text, %s::text)", params, first)


def _fields_of(payload: Payload | Event, type: str) -> tuple[str | None, str, str | None]:
    """Returns the type, the payload and the key as they are stored."""
    if not isinstance(payload, Event):
        return type, encode(payload), None
    event_type = type if payload.type is None else payload.type
    return event_type, encode(payload.payload), payload.key


def row_of(payload: Payload | Event | Message, type: str) -> tuple[str | None, ...]:
    """Returns the type, the payload and the four extra fields of an event, as they are stored."""
    if isinstance(payload, Message):
        extras = (payload.extra1, payload.extra2, payload.extra3, payload.extra4)
        return (payload.type, payload.payload, *extras)
    return (*_fields_of(payload, type), None, None, None)
