"""The part of the client that sends events."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta

from .calls.call import Call, Copy, Steps, first
from .calls.publishing import Rows, event_table, fields_of, lines
from .encoding import Payload, encode
from .errors import InvalidArgument
from .models import Event, ScheduledEvent, Sent
from .operation import operation
from .ranges import check_interval
from .tracing import producer_span

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
        params = (queue, type, encode(payload))
        span = producer_span(queue)
        if span is not None:
            extras = (
                (span.traceparent, None)
                if partition_key is None
                else (partition_key, span.traceparent)
            )
            return Call(
                "select pgque.insert_event(%s::text, %s::text, %s::text, %s, %s, null, null)",
                (*params, *extras),
                first,
                span.current,
            )
        if partition_key is not None:
            return Call(
                "select pgque.send(%s::text, %s::text, %s::text, %s::text)",
                (*params, partition_key),
                first,
            )
        return Call("select pgque.send(%s::text, %s::text, %s::text)", params, first)

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
            payloads: as for `send`, or an `Event`, which may have a type and a key of its own.
            type: the type of the others.

        Example:
            >>> paid = Event({"id": 1}, type="order.paid", key="customer-7")
            >>> client.send_batch("orders", [{"id": 1}, paid], type="order.created")
            [1, 2]
        """
        span = producer_span(queue)
        rows = [fields_of(payload, type, span) for payload in payloads]
        if all(row[0] == type and row[2] is None for row in rows):
            return Call(
                # Binary format: in text format, JSON in an array is mostly escape characters.
                "select pgque.send_batch(%s::text, %s::text, %b::text[])",
                (queue, type, [row[1] for row in rows]),
                first,
            )
        return Call(
            "select pgque.insert_event(%s::text, e.type, e.data, e.extra1, e.extra2, null, null) "
            "from unnest(%b::text[], %b::text[], %b::text[], %b::text[]) with ordinality "
            "as e (type, data, extra1, extra2, nr) order by e.nr",
            (queue, *([row[column] for row in rows] for column in range(4))),
            lambda rows: [row[0] for row in rows],
            span.current if span else None,
        )

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
        span = producer_span(queue)
        table = yield from event_table(queue)
        rows = Rows(lines(payloads, type, span))
        with span.current() if span else nullcontext():
            yield Copy(
                f"copy {table} (ev_type, ev_data, ev_extra1, ev_extra2)"
                " from stdin (encoding 'UTF8')",
                rows.blocks(),
            )
        return rows.count

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
