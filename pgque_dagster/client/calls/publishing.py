"""Publishing events, now or at a later time."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from ..errors import InvalidArgument
from ..models import ScheduledEvent, Sent
from .call import Call, first
from .encoding import Payload, encode


def send(
    queue: str, payload: Payload, type: str, partition_key: str | None, check_json: bool
) -> Call[int]:
    """Sends one event. With `check_json` the server refuses text that is not JSON."""
    params = (queue, type, encode(payload))
    if partition_key is not None:
        if check_json:
            return Call(
                "select pgque.send(%s::text, %s::text, %s::jsonb, %s::text)",
                (*params, partition_key),
                first,
            )
        return Call(
            "select pgque.send(%s::text, %s::text, %s::text, %s::text)",
            (*params, partition_key),
            first,
        )
    if check_json:
        return Call("select pgque.send(%s::text, %s::text, %s::jsonb)", params, first)
    return Call("select pgque.send(%s::text, %s::text, %s::text)", params, first)


def send_at(queue: str, payload: Payload, at: datetime, type: str) -> Call[int]:
    """Schedules one event.

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


def cancel_scheduled(entry_id: int) -> Call[bool]:
    """Cancels a scheduled event; False if there is none."""
    return Call("select pgque.cancel_scheduled(%s)", (entry_id,), first)


def list_scheduled(queue: str, limit: int) -> Call[list[ScheduledEvent]]:
    """The scheduled events, the earliest first."""
    return Call(
        "select de_id, de_deliver_at, de_type, de_data from pgque.list_scheduled(%s, %s)",
        (queue, limit),
        lambda rows: [ScheduledEvent(*row) for row in rows],
    )


def send_idem(
    queue: str, payload: Payload, key: str, type: str, ttl: timedelta, partition_key: str | None
) -> Call[Sent]:
    """Sends one event unless an event with this key was sent."""
    return Call(
        "select event_id, deduped from pgque.send_idem("
        "%s::text, %s::text, %s::text, %s::text, %s::interval, %s::text)",
        (queue, type, encode(payload), key, ttl, partition_key),
        lambda rows: Sent(*rows[0]),
    )


def send_batch(queue: str, payloads: Sequence[Payload], type: str) -> Call[list[int]]:
    """Sends many events of one type."""
    return Call(
        # Binary format: in text format, JSON in an array is mostly escape characters.
        "select pgque.send_batch(%s::text, %s::text, %b::text[])",
        (queue, type, [encode(payload) for payload in payloads]),
        first,
    )
