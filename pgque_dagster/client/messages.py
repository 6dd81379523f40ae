"""Messages of the add-on postgremq, as `client.messages`, in two faces."""

import asyncio
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

from . import calls
from .calls.call import Call, Hook, Steps
from .connection import connect, connect_async, url_of
from .encoding import Payload
from .errors import translated
from .intervals import check_interval
from .models import ClaimedMessage, MessageQueue
from .operation import AsyncFace, Face, operation

if TYPE_CHECKING:
    from .async_session import AsyncSession
    from .session import Session

T = TypeVar("T")

_CHANNEL = "listen postgremq_events"
_VISIBILITY = timedelta(seconds=30)


class _Operations:
    """What both faces have."""

    @operation
    def create_topic(self, topic: str) -> Call[None]:
        """Creates a topic, unless it exists. Needs pgque_admin."""
        return calls.messages.create_topic(topic)

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
        return calls.messages.create_queue(queue, topic, max_attempts, exclusive_for)

    @operation
    def queues(self) -> Call[list[MessageQueue]]:
        """Returns all queues, by name, with the numbers of their messages."""
        return calls.messages.queues()

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
        return calls.messages.publish(topic, payload, deliver_after)

    @operation
    def consume(
        self, queue: str, *, visibility: timedelta = _VISIBILITY, limit: int = 1
    ) -> Call[list[ClaimedMessage]]:
        """Claims up to `limit` messages, which others get only after `visibility`.

        Returns an empty list if no message is visible.

        Raises:
            QueueNotFound: if there is no such queue, or no longer.
        """
        return calls.messages.consume(queue, visibility, limit)

    @operation
    def ack(self, *messages: ClaimedMessage) -> Call[list[int]]:
        """Finishes messages of one queue; returns the ids of those that were still the caller's.

        The others became visible again and went to another consumer, or were answered before.
        """
        return calls.messages.ack(messages)

    @operation
    def nack(self, message: ClaimedMessage, *, delay_until: datetime | None = None) -> Call[None]:
        """Makes a message visible again, now or at a time. The delivery counts as an attempt.

        Raises:
            DatabaseError: if the message is not the caller's any more.
        """
        return calls.messages.nack(message, delay_until)

    @operation
    def release(self, message: ClaimedMessage) -> Call[None]:
        """Gives a message back at once. The delivery does not count as an attempt.

        Raises:
            DatabaseError: if the message is not the caller's any more.
        """
        return calls.messages.release(message)

    @operation
    def extend(
        self, *messages: ClaimedMessage, visibility: timedelta = _VISIBILITY
    ) -> Call[list[int]]:
        """Keeps messages of one queue for `visibility` from now; returns the ids of those kept."""
        return calls.messages.extend(messages, visibility)

    @operation
    def next_visible(self, queue: str) -> Call[timedelta | None]:
        """Returns in how long the next message is visible, or None if none is to come.

        It is negative if a message is visible already.

        Raises:
            QueueNotFound: if there is no such queue, or no longer.
        """
        return calls.messages.next_visible(queue)


class Messages(_Operations, Face):
    """The messages of a client's database, in which postgremq is installed.

    Example:
        >>> client.messages.publish("orders", {"id": 1})
        1
        >>> for message in client.messages.consume("emails", limit=10):
        ...     client.messages.ack(message)
    """

    def __init__(self, session: "Session") -> None:
        self._session = session

    def run(self, work: Call[T] | Steps[T]) -> T:
        """Runs work on the client's connection."""
        return self._session.run(work)

    def wait(self, queue: str, timeout: timedelta) -> bool:
        """Waits until a message of the queue may be visible; returns whether one is.

        It listens on a connection of its own, and wakes when a message is published or given back,
        or when a claim or a delay ends.
        """
        check_interval("timeout", timeout, is_zero_allowed=True)
        ends_at = time.monotonic() + timeout.total_seconds()
        with connect(self._session.url) as connection, translated():
            connection.execute(_CHANNEL)
            while True:
                left = ends_at - time.monotonic()
                due = self.next_visible(queue)
                if due is not None and due <= timedelta(0):
                    return True
                if left <= 0:
                    return False
                step = left if due is None else min(left, due.total_seconds())
                for note in connection.notifies(timeout=step):
                    if calls.messages.is_for(note.payload, queue):
                        break


class AsyncMessages(_Operations, AsyncFace):
    """`Messages` for asyncio. Its methods are coroutine functions."""

    def __init__(self, session: "AsyncSession") -> None:
        self._session = session

    async def run(self, work: Call[T] | Steps[T]) -> T:
        """Runs work on the client's connection."""
        return await self._session.run(work)

    async def wait(self, queue: str, timeout: timedelta) -> bool:
        """Waits until a message of the queue may be visible, as `Messages.wait` does."""
        check_interval("timeout", timeout, is_zero_allowed=True)
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + timeout.total_seconds()
        connection = await connect_async(await self._session.run(_url()))
        async with connection:
            with translated():
                await connection.execute(_CHANNEL)
                while True:
                    left = ends_at - loop.time()
                    due = await self.next_visible(queue)
                    if due is not None and due <= timedelta(0):
                        return True
                    if left <= 0:
                        return False
                    step = left if due is None else min(left, due.total_seconds())
                    async for note in connection.notifies(timeout=step):
                        if calls.messages.is_for(note.payload, queue):
                            break


def _url() -> Steps[str]:
    url: str = yield Hook(url_of)
    return url
