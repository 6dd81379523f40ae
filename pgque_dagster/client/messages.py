"""Messages of the add-on postgremq, as `client.messages`, in two faces."""

import json
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg

from .connection import open_connection
from .encoding import Payload, json_text
from .errors import InvalidArgument, QueueNotFound, translated
from .operation import (
    AsyncFace,
    Call,
    Face,
    Row,
    finished,
    first,
    nothing,
    operation,
    settled,
    within,
)
from .ranges import check_interval, checked_count

if TYPE_CHECKING:
    from .session import AsyncSession, Session

_CHANNEL = "listen postgremq_events"
_VISIBILITY = timedelta(seconds=30)
_EXISTS = "exists (select from postgremq.list_queues() x where x.queue_name = a.q)"


@dataclass(frozen=True, slots=True)
class ClaimedMessage:
    """A message of the add-on postgremq that the caller has claimed.

    Attributes:
        payload: JSON text.
        token: proves the claim. Only who has it can ack, nack, release or extend.
        attempts: how often it was delivered, with this time.
        visible_at: when others may get it, unless it is acked or extended before.
    """

    queue: str
    id: int
    payload: str
    token: str
    attempts: int
    visible_at: datetime
    published_at: datetime

    def json(self) -> Any:
        """Parses the payload."""
        return json.loads(self.payload)


@dataclass(frozen=True, slots=True)
class MessageQueue:
    """A queue of the add-on postgremq.

    Attributes:
        topic: whose messages it gets.
        pending: how many messages wait, also those that are delayed.
        processing: how many are claimed, or were, and are not acked.
        dead_letters: how many are in the dead-letter queue.
    """

    name: str
    topic: str
    pending: int
    processing: int
    dead_letters: int


class _MessageOperations:
    """What both faces have."""

    def __init__(self, session: Any) -> None:
        self.session = session

    async def _wait(self, queue: str, timeout: timedelta, connections: Any, url: str) -> bool:
        check_interval("timeout", timeout, is_zero_allowed=True)
        ends_at = time.monotonic() + timeout.total_seconds()
        face: Any = self
        connection = await open_connection(url, connections)
        async with within(connection):
            with translated():
                await settled(connection.execute(_CHANNEL))
                while True:
                    left = ends_at - time.monotonic()
                    due = await settled(face.next_visible(queue))
                    if due is not None and due <= timedelta(0):
                        return True
                    if left <= 0:
                        return False
                    until = time.monotonic() + (min(left, due.total_seconds()) if due else left)
                    while (step := until - time.monotonic()) > 0:
                        notes = connection.notifies(timeout=step, stop_after=1)
                        if any(_is_for(note.payload, queue) for note in await _listed(notes)):
                            break

    @operation
    def create_topic(self, topic: str) -> Call[None]:
        """Creates a topic, unless it exists. Needs pgque_admin."""
        return Call("select postgremq.create_topic(%s)", (topic,), nothing)

    @operation
    def create_queue(
        self,
        queue: str,
        topic: str,
        *,
        max_attempts: int = 0,
        exclusive_for: timedelta | None = None,
    ) -> Call[None]:
        """Creates a queue of a topic, which gets the messages published from then on.

        Args:
            queue: its name.
            topic: the topic's name.
            max_attempts: after how many deliveries a message is delivered no more; 0 for no limit.
            exclusive_for: for an exclusive queue, how long it gets messages unless it is extended.
        """
        seconds = 30 if exclusive_for is None else _seconds("exclusive_for", exclusive_for)
        return Call(
            "select postgremq.create_queue(%s, %s, %s, %s, %s)",
            (queue, topic, max_attempts, exclusive_for is not None, seconds),
            nothing,
        )

    @operation
    def queues(self) -> Call[list[MessageQueue]]:
        """Returns all queues, by name, with the numbers of their messages."""
        return Call(
            "select q.queue_name, q.topic_name, s.pending_count, s.processing_count,"
            " (select count(*) from postgremq.list_dlq_messages() d"
            " where d.queue_name = q.queue_name) from postgremq.list_queues() q"
            " cross join lateral postgremq.get_queue_statistics(q.queue_name) s"
            " order by q.queue_name",
            (),
            lambda rows: [MessageQueue(*row) for row in rows],
        )

    @operation
    def publish(
        self, topic: str, payload: Payload, *, deliver_after: datetime | None = None
    ) -> Call[int]:
        """Publishes a message to the queues of a topic; returns its id.

        Args:
            topic: the topic's name.
            payload: what is written as JSON; a str must be JSON.
            deliver_after: the earliest time of delivery, with a time zone; None for at once.
        """
        _check_time("deliver_after", deliver_after)
        text = json_text(payload)
        return Call(
            "select postgremq.publish_message(%s, %s::jsonb, %s)",
            (topic, text, deliver_after),
            first,
        )

    @operation
    def consume(
        self, queue: str, *, visibility: timedelta = _VISIBILITY, limit: int = 1
    ) -> Call[list[ClaimedMessage]]:
        """Claims up to `limit` messages, which others get only after `visibility`.

        Returns an empty list if no message is visible.

        Raises:
            QueueNotFound: if there is no such queue, or no longer.
        """
        return Call(
            "select c.queue_name, c.message_id, c.payload::text, c.consumer_token,"
            " c.delivery_attempts,"
            " c.vt, c.published_at, c.message_id is not null or "
            + _EXISTS
            + " from (values (%s)) a(q)"
            " left join lateral postgremq.consume_message(a.q, %s, %s) c on true",
            (queue, _seconds("visibility", visibility), checked_count("limit", limit)),
            lambda rows: [ClaimedMessage(*row[:-1]) for row in _of_queue(queue, rows) if row[1]],
        )

    @operation
    def ack(self, *messages: ClaimedMessage) -> Call[list[int]]:
        """Finishes messages of one queue; returns the ids of those that were still the caller's.

        The others became visible again and went to another consumer, or were answered before.
        """
        queue, ids, tokens = _claims(messages, "ack(*messages)")
        return Call(
            "select postgremq.ack_message_batch(%s, %s::int[], %s::varchar[])",
            (queue, ids, tokens),
            _column,
        )

    @operation
    def nack(self, message: ClaimedMessage, *, delay_until: datetime | None = None) -> Call[None]:
        """Makes a message visible again, now or at a time. The delivery counts as an attempt.

        Raises:
            DatabaseError: if the message is not the caller's any more.
        """
        _check_time("delay_until", delay_until)
        return Call(
            "select postgremq.nack_message(%s, %s, %s, coalesce(%s, now()))",
            (*_claim(message, "nack(message)"), delay_until),
            nothing,
        )

    @operation
    def release(self, message: ClaimedMessage) -> Call[None]:
        """Gives a message back at once. The delivery does not count as an attempt.

        Raises:
            DatabaseError: if the message is not the caller's any more.
        """
        return Call(
            "select postgremq.release_message(%s, %s, %s)",
            _claim(message, "release(message)"),
            nothing,
        )

    @operation
    def extend(
        self, *messages: ClaimedMessage, visibility: timedelta = _VISIBILITY
    ) -> Call[list[int]]:
        """Keeps messages of one queue for `visibility` from now; returns the ids of those kept."""
        queue, ids, tokens = _claims(messages, "extend(*messages, visibility=timedelta(minutes=1))")
        return Call(
            "select message_id from postgremq.set_vt_batch(%s, %s::int[], %s::varchar[], %s)",
            (queue, ids, tokens, _seconds("visibility", visibility)),
            _column,
        )

    @operation
    def next_visible(self, queue: str) -> Call[timedelta | None]:
        """Returns in how long the next message is visible, or None if none is to come.

        It is negative if a message is visible already.

        Raises:
            QueueNotFound: if there is no such queue, or no longer.
        """
        return Call(
            "select postgremq.get_next_visible_time(a.q) - clock_timestamp(), " + _EXISTS + ""
            " from (values (%s)) a(q)",
            (queue,),
            lambda rows: first(_of_queue(queue, rows)),
        )


class Messages(_MessageOperations, Face):
    """The messages of a client's database, in which postgremq is installed.

    Example:
        >>> client.messages.publish("orders", {"id": 1})
        1
        >>> for message in client.messages.consume("emails", limit=10):
        ...     client.messages.ack(message)
    """

    session: "Session"

    def wait(self, queue: str, timeout: timedelta) -> bool:
        """Waits until a message of the queue may be visible; returns whether one is.

        It listens on a connection of its own, and wakes when a message is published or given back,
        or when a claim or a delay ends.
        """
        return finished(self._wait(queue, timeout, psycopg.Connection, self.session.url))


class AsyncMessages(_MessageOperations, AsyncFace):
    """`Messages` for asyncio. Its methods are coroutine functions."""

    session: "AsyncSession"

    async def wait(self, queue: str, timeout: timedelta) -> bool:
        """Waits until a message of the queue may be visible, as `Messages.wait` does."""
        url = await self.session.find_url()
        return await self._wait(queue, timeout, psycopg.AsyncConnection, url)


async def _listed(values: Iterable[Any] | AsyncIterator[Any]) -> list[Any]:
    """Returns the values of an iterator of either kind."""
    if isinstance(values, AsyncIterator):
        return [value async for value in values]
    return list(values)


def _is_for(notification: str, queue: str) -> bool:
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


def _column(rows: list[Row]) -> list[int]:
    return [row[0] for row in rows]
