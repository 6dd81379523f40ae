"""Topics, queues and messages of the add-on postgremq."""

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from ..counts import checked_count
from ..encoding import Payload, json_text
from ..errors import InvalidArgument, QueueNotFound
from ..intervals import check_interval
from ..models import ClaimedMessage, MessageQueue
from .call import Call, Row, first, nothing

_EXISTS = "exists (select from postgremq.queues x where x.name = a.q)"


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
    _check_time("deliver_after", deliver_after)
    text = json_text(payload)
    return Call(
        "select postgremq.publish_message(%s, %s::jsonb, %s)", (topic, text, deliver_after), first
    )


def consume(queue: str, visibility: timedelta, limit: int) -> Call[list[ClaimedMessage]]:
    """Claims up to `limit` messages."""
    return Call(
        "select c.queue_name, c.message_id, c.payload::text, c.consumer_token, c.delivery_attempts,"
        " c.vt, c.published_at, c.message_id is not null or " + _EXISTS + " from (values (%s)) a(q)"
        " left join lateral postgremq.consume_message(a.q, %s, %s) c on true",
        (queue, _seconds("visibility", visibility), checked_count("limit", limit)),
        lambda rows: [ClaimedMessage(*row[:-1]) for row in _of_queue(queue, rows) if row[1]],
    )


def ack(messages: Sequence[ClaimedMessage]) -> Call[list[int]]:
    """Finishes messages of one queue; returns the ids of those that were the caller's."""
    queue, ids, tokens = _claims(messages, "ack(*messages)")
    return Call(
        "select postgremq.ack_message_batch(%s, %s::int[], %s::varchar[])",
        (queue, ids, tokens),
        _column,
    )


def nack(message: ClaimedMessage, delay_until: datetime | None) -> Call[None]:
    """Makes a message visible again at a time."""
    _check_time("delay_until", delay_until)
    return Call(
        "select postgremq.nack_message(%s, %s, %s, coalesce(%s, now()))",
        (*_claim(message, "nack(message)"), delay_until),
        nothing,
    )


def release(message: ClaimedMessage) -> Call[None]:
    """Gives a message back, without an attempt."""
    return Call(
        "select postgremq.release_message(%s, %s, %s)",
        _claim(message, "release(message)"),
        nothing,
    )


def extend(messages: Sequence[ClaimedMessage], visibility: timedelta) -> Call[list[int]]:
    """Extends claims of one queue; returns the ids of those that were extended."""
    queue, ids, tokens = _claims(messages, "extend(*messages, visibility=timedelta(minutes=1))")
    return Call(
        "select message_id from postgremq.set_vt_batch(%s, %s::int[], %s::varchar[], %s)",
        (queue, ids, tokens, _seconds("visibility", visibility)),
        _column,
    )


def next_visible(queue: str) -> Call[timedelta | None]:
    """How long until the next message is visible; None if no message is to come."""
    return Call(
        "select postgremq.get_next_visible_time(a.q) - clock_timestamp(), " + _EXISTS + ""
        " from (values (%s)) a(q)",
        (queue,),
        lambda rows: first(_of_queue(queue, rows)),
    )


def is_for(notification: str, queue: str) -> bool:
    """Whether a notification on the channel of the messages is about a queue.

    Every login may send notifications, so what is not one of postgremq's is about none.
    """
    try:
        queues = json.loads(notification)["queues"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return False
    return isinstance(queues, list) and queue in queues


def _of_queue(queue: str, rows: list[Row]) -> list[Row]:
    """Returns rows whose last column says whether the queue exists, if it does."""
    if not rows[0][-1]:
        raise QueueNotFound(
            f'queue "{queue}" of messages does not exist',
            "postgremq.list_queues() lists those that exist. Names are case-sensitive.",
        )
    return rows


def _claims(
    messages: Sequence[ClaimedMessage], usage: str
) -> tuple[str | None, list[int], list[str]]:
    claims = [_claim(message, usage) for message in messages]
    queues = {queue for queue, _, _ in claims}
    if len(queues) > 1:
        raise InvalidArgument(
            f"the messages are of several queues: {', '.join(sorted(queues))}",
            "Pass those of one queue at a time.",
        )
    return (
        next(iter(queues), None),
        [number for _, number, _ in claims],
        [token for _, _, token in claims],
    )


def _claim(message: ClaimedMessage, usage: str) -> tuple[str, int, str]:
    if not isinstance(message, ClaimedMessage):
        # Not the value itself: a list of messages has their tokens.
        raise InvalidArgument(
            f"a value of type {type(message).__name__} is no message that `consume` returned",
            f"Pass what it returned: {usage}.",
        )
    return message.queue, message.id, message.token


def _seconds(name: str, interval: timedelta) -> int:
    check_interval(name, interval, is_zero_allowed=True)
    seconds = interval.total_seconds()
    if seconds != int(seconds):
        raise InvalidArgument(f"{name} is {interval}", "Pass whole seconds, at least 0.")
    return checked_count(f"{name} in seconds", int(seconds))


def _check_time(name: str, time: datetime | None) -> None:
    if time is None:
        return
    if not isinstance(time, datetime):
        raise InvalidArgument(
            f"{name}={time!r} is no time",
            "Pass a datetime, such as datetime.now(UTC) + timedelta(hours=1).",
        )
    if time.utcoffset() is None:
        raise InvalidArgument(f"{name} has no time zone", "Pass an aware datetime.")


_column: Callable[[list[Row]], list[int]] = lambda rows: [row[0] for row in rows]  # noqa: E731
