"""The calls that publish events, at once or later."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from ..errors import InvalidArgument
from ..models import ScheduledEvent, Sent
from .call import Call, first
from .encoding import Payload, encode


def send(
    queue: str, payload: Payload, type: str, partition_key: str | None, check_json: bool
) -> Call[int]:
    """One event; with `check_json`, refused by the server unless it is JSON."""
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
    """One event at a time.

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
    """A scheduled event taken back; False if there is none."""
    return Call("select pgque.cancel_scheduled(%s)", (entry_id,), first)


def list_scheduled(queue: str, limit: int) -> Call[list[ScheduledEvent]]:
    """The events that wait for their time, the next first."""
    return Call(
        "select de_id, de_deliver_at, de_type, de_data from pgque.list_scheduled(%s, %s)",
        (queue, limit),
        lambda rows: [ScheduledEvent(*row) for row in rows],
    )


def send_idem(
    queue: str, payload: Payload, key: str, type: str, ttl: timedelta, partition_key: str | None
) -> Call[Sent]:
    """One event, unless one was sent under the key."""
    return Call(
        "select event_id, deduped from pgque.send_idem("
        "%s::text, %s::text, %s::text, %s::text, %s::interval, %s::text)",
        (queue, type, encode(payload), key, ttl, partition_key),
        lambda rows: Sent(*rows[0]),
    )


def send_batch(queue: str, payloads: Sequence[Payload], type: str) -> Call[list[int]]:
    """Many events of one type."""
    return Call(
        # Binary: an array of JSON as text is mostly escapes.
        "select pgque.send_batch(%s::text, %s::text, %b::text[])",
        (queue, type, [encode(payload) for payload in payloads]),
        first,
    )
