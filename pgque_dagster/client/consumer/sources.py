"""Where a consumer's messages come from: a batch of its own, or a page of a slot."""

import itertools
from contextlib import suppress
from dataclasses import fields
from datetime import timedelta
from operator import attrgetter
from typing import Any

from .. import calls
from ..batch import Batch
from ..client import Client
from ..errors import InvalidArgument, PgqueError
from ..holder import Holder
from ..lease import Keeper, LeaseKeeper
from ..models import Limits, Message
from ..partitions import PartitionedConsumer, Slot
from ..positions import Position
from .delivery import Failed, Pages

_PAGE = 10_000
_values = attrgetter(*(field.name for field in fields(Message)))


class BatchWork:
    """A claimed batch to handle.

    Attributes:
        queue: the queue's name.
        batch_id: the batch.
        batch: the claim.
    """

    def __init__(self, batch: Batch, ttl: timedelta) -> None:
        self.queue = batch.queue
        self._ttl = ttl
        self.batch_id = batch.batch_id
        self.batch = batch

    def failed(self, retry_after: timedelta) -> Failed:
        """Returns what notes the messages that fail."""
        return Failed(retry_after)

    def messages(self, failed: Failed) -> Pages:
        """Reads the messages, in order."""
        events = calls.batches.batch_events(self.batch.batch_id)
        return Pages(self.batch.session.pages(events, _PAGE), self.queue, failed)

    def keeper(self) -> Keeper:
        """Returns what renews the lease; its `check` raises once the lease is lost."""
        return LeaseKeeper(self.batch.session.url, self.batch.lease, self._ttl)

    def finish(self, failed: Failed) -> None:
        """Acks the batch, and writes which messages failed, in one transaction."""
        # A new one: if its transaction was refused, other events may have failed the next time.
        claimed = self.batch
        batch = Batch(claimed.session, self.queue, claimed.consumer, claimed.lease, self._ttl)
        failed.write_to(batch)
        batch.ack()

    def release(self) -> None:
        """Leaves the messages to the next who claims them."""
        self.batch.release()


class SlotWork:
    """A page of a slot of a partitioned consumer, with what a `BatchWork` has."""

    batch_id: int | None = None

    def __init__(self, queue: str, slot: Slot, client: Client, page: Any) -> None:
        self.queue = queue
        self._slot = slot
        self._client = client
        self._page: list[Message] = page

    def failed(self, retry_after: timedelta) -> Failed:
        """Returns what notes the messages that fail."""
        return _SlotFailed(retry_after)

    def messages(self, failed: Failed) -> Pages:
        """Returns the messages of the page."""
        return Pages([[_values(message) for message in self._page]], self.queue, failed)

    def keeper(self) -> Keeper:
        """Returns what renews the lease on the slot."""
        return self._slot.keep_alive()

    def finish(self, failed: Failed) -> None:
        """Acks the page, and releases the slot for the worker that comes next."""
        with self._client.transaction():
            for msg_id, retry_after, reason in failed.nacked():
                self._slot.nack(msg_id, retry_after=retry_after, reason=reason)
            self._slot.ack()
        self._slot.release()

    def release(self) -> None:
        """Leaves the messages to the next who claims them."""
        self._slot.release()


class _SlotFailed(Failed):
    def dead_letter(self, message: Message, reason: str) -> None:
        """Refuses, because a slot's events become dead letters by their retries alone.

        Raises:
            InvalidArgument: always.
        """
        raise InvalidArgument(
            "an event of a partitioned consumer becomes a dead letter when its retries run out",
            "Call nack, and set the queue's max_retries.",
        )


class BatchSource:
    """Batches of a consumer, or of a subconsumer that shares them with others."""

    def __init__(
        self,
        queue: str,
        consumer: str,
        subconsumer: str | None,
        owner: str,
        ttl: timedelta,
        limits: Limits,
    ) -> None:
        self.queue = queue
        self._holder = Holder(queue, consumer, subconsumer)
        self._owner = owner
        self._ttl = ttl
        self._limits = limits

    def register(self, client: Client, start_at: Position | None) -> None:
        """Registers the consumer if `start_at` says where it starts."""
        if start_at is not None:
            client.register_consumer(self.queue, self._holder.consumer, start_at=start_at)
        else:
            client.run(calls.consumers.check_consumer(self.queue, self._holder.consumer))
        if self._holder.subconsumer is not None:
            client.run(self._holder.register_subconsumer())

    def claim(self, client: Client) -> BatchWork | None:
        """Claims the next batch; None if there is none."""
        batch = self._holder.claim(client, owner=self._owner, ttl=self._ttl, limits=self._limits)
        return BatchWork(batch, self._ttl) if batch else None


class SlotSource:
    """Pages of the slots of a partitioned consumer, from whichever slot is free and has events."""

    def __init__(
        self,
        queue: str,
        consumer: str,
        slots: int,
        owner: str,
        ttl: timedelta,
    ) -> None:
        self.queue = queue
        self._consumer = consumer
        self._slots = slots
        self._owner = owner
        self._ttl = ttl
        self._next = itertools.cycle(range(slots))

    def register(self, client: Client, start_at: Position | None) -> None:
        """Subscribes all slots if `start_at` is latest.

        Raises:
            InvalidArgument: if it is another position.
        """
        if start_at not in (None, "latest"):
            raise InvalidArgument(
                f"a partitioned consumer starts at the latest tick, not at {start_at}",
                'Pass start_at="latest".',
            )
        of = self._partitioned(client)
        if start_at is not None:
            for slot in range(self._slots):
                of.subscribe(slot)

    def claim(self, client: Client) -> SlotWork | None:
        """Claims the next slot that is free and has events."""
        of = self._partitioned(client)
        for _ in range(self._slots):
            slot = of.claim(next(self._next), worker=self._owner, ttl=self._ttl)
            if slot is None:
                continue
            try:
                page = slot.receive()
            except BaseException:
                with suppress(PgqueError):
                    slot.release()
                raise
            if page:
                return SlotWork(self.queue, slot, client, page)
            slot.release()
        return None

    def _partitioned(self, client: Client) -> PartitionedConsumer:
        return PartitionedConsumer(client, self.queue, self._consumer, slots=self._slots)


Work = BatchWork | SlotWork
Source = BatchSource | SlotSource
