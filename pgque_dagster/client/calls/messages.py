"""Topics, queues and messages of the add-on postgremq."""

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from ..encoding import Payload, encode
from ..errors import InvalidArgument, MalformedPayload
from ..models import ClaimedMessage, MessageQueue
from .call import Call, Row, first, nothing


def create_topic(topic: str) -> Call[None]:
    """Creates a topic, unless it exists."""
    return Call("select postgremq.create_topic(%s)", (topic,), nothing)


def create_queue(
    queue: str, topic: str, max_attempts: int, exclusive_for: timedelta | None
) -> Call[None]:
    """Creates a queue of a topic."""
    seconds = 30 if exclusive_for is None else _seconds("exclusive_for", exclusive_for)
    return Call(
        "select postgremq.create_queue(%s, %s, %s, %s, %s)",
        (queue, topic, max_attempts, exclusive_for is not None, seconds),
        nothing,
    )


def queues() -> Call[list[MessageQueue]]:
    """All queues, by name, with their messages."""
    return Call(
        "select q.queue_name, q.topic_name, s.pending_count, s.processing_count,"
        " (select count(*) from postgremq.list_dlq_messages() d where d.queue_name = q.queue_name)"
        " from postgremq.list_queues() q"
        " cross join lateral postgremq.get_queue_statistics(q.queue_name) s order by q.queue_name",
        (),
        lambda rows: [MessageQueue(*row) for row in rows],
    )


def publish(topic: str, payload: Payload, deliver_after: datetime | None) -> Call[int]:
    """Publishes one message; returns its id."""
    if deliver_after is not None and deliver_after.utcoffset() is None:
        raise InvalidArgument("deliver_after has no time zone", "Pass an aware datetime.")
    text = payload if isinstance(payload, str) else encode(payload)
    try:
        json.loads(text)
    except ValueError as error:
        raise MalformedPayload(f"the payload is not JSON: {error}") from error
    return Call(
        "select postgremq.publish_message(%s, %s::jsonb, %s)", (topic, text, deliver_after), first
    )


def consume(queue: str, visibility: timedelta, limit: int) -> Call[list[ClaimedMessage]]:
    """Claims up to `limit` messages."""
    return Call(
        "select queue_name, message_id, payload::text, consumer_token, delivery_attempts, vt,"
        " published_at from postgremq.consume_message(%s, %s, %s)",
        (queue, _seconds("visibility", visibility), limit),
        lambda rows: [ClaimedMessage(*row) for row in rows],
    )


def ack(messages: Sequence[ClaimedMessage]) -> Call[list[int]]:
    """Finishes messages of one queue; returns the ids of those that were the caller's."""
    queue, ids, tokens = _claims(messages)
    return Call(
        "select postgremq.ack_message_batch(%s, %s::int[], %s::varchar[])",
        (queue, ids, tokens),
        _column,
    )


def nack(message: ClaimedMessage, delay_until: datetime | None) -> Call[None]:
    """Makes a message visible again at a time."""
    return Call(
        "select postgremq.nack_message(%s, %s, %s, coalesce(%s, now()))",
        (message.queue, message.id, message.token, delay_until),
        nothing,
    )


def release(message: ClaimedMessage) -> Call[None]:
    """Gives a message back, without an attempt."""
    return Call(
        "select postgremq.release_message(%s, %s, %s)",
        (message.queue, message.id, message.token),
        nothing,
    )


def extend(messages: Sequence[ClaimedMessage], visibility: timedelta) -> Call[list[int]]:
    """Extends claims of one queue; returns the ids of those that were extended."""
    queue, ids, tokens = _claims(messages)
    return Call(
        "select message_id from postgremq.set_vt_batch(%s, %s::int[], %s::varchar[], %s)",
        (queue, ids, tokens, _seconds("visibility", visibility)),
        _column,
    )


def next_visible(queue: str) -> Call[timedelta | None]:
    """How long until the next message is visible; None if no message is to come."""
    return Call("select postgremq.get_next_visible_time(%s) - clock_timestamp()", (queue,), first)


def is_for(notification: str, queue: str) -> bool:
    """Whether a notification on the channel of the messages is about a queue."""
    return queue in (json.loads(notification).get("queues") or ())


def _claims(messages: Sequence[ClaimedMessage]) -> tuple[str | None, list[int], list[str]]:
    queues = {message.queue for message in messages}
    if len(queues) > 1:
        raise InvalidArgument(
            f"the messages are of several queues: {', '.join(sorted(queues))}",
            "Pass those of one queue at a time.",
        )
    return (
        next(iter(queues), None),
        [message.id for message in messages],
        [message.token for message in messages],
    )


def _seconds(name: str, interval: timedelta) -> int:
    seconds = interval.total_seconds()
    if seconds != int(seconds) or seconds < 0:
        raise InvalidArgument(f"{name} is {interval}", "Pass whole seconds, at least 0.")
    return int(seconds)


_column: Callable[[list[Row]], list[int]] = lambda rows: [row[0] for row in rows]  # noqa: E731
