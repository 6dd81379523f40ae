"""The part of the client that opens, reads and finishes batches."""

from datetime import timedelta
from typing import Any, Generic, TypeVar

from . import calls
from .calls.call import Call, Steps
from .models import BatchInfo, LeaseInfo, Limits, Received
from .operation import operation

B = TypeVar("B")

NO_LIMITS = Limits()
DEFAULT_TTL = timedelta(minutes=1)


class Consuming(Generic[B]):
    """The operations on batches. `B` is the class of a claimed batch."""

    _batch_class: Any

    @operation
    def next_batch(self, queue: str, consumer: str, limits: Limits = NO_LIMITS) -> Call[int | None]:
        """Opens the next batch without a lease, or returns the open one; None if there is none."""
        return calls.batches.next_batch(queue, consumer, limits)

    @operation
    def receive(
        self, queue: str, consumer: str, limits: Limits = NO_LIMITS
    ) -> Steps[Received | None]:
        """Opens the next batch that has events, without a lease, and returns all its events.

        Until `finish_batch`, it returns the same events. `claim` is for several processes that
        consume as one consumer.

        Args:
            queue: the queue's name.
            consumer: the consumer's name.
            limits: which batch to open.

        Returns:
            The batch and its events, or None when there is no batch. Batches without events are
            finished.
        """
        while True:
            batch_id = yield calls.batches.next_batch(queue, consumer, limits)
            if batch_id is None:
                return None
            messages = yield calls.batches.batch_events(batch_id)
            if messages:
                return Received(batch_id, messages)
            yield calls.batches.finish_batch(batch_id)

    @operation
    def claim(
        self,
        queue: str,
        consumer: str,
        *,
        owner: str,
        ttl: timedelta = DEFAULT_TTL,
        limits: Limits = NO_LIMITS,
        batch_id: int | None = None,
    ) -> Call[B | None]:
        """Claims the next batch, or the open batch if no live lease is on it.

        Args:
            queue: the queue's name.
            consumer: the consumer's name.
            owner: who claims the batch, such as a run id or a host and process; others see it.
            ttl: how long the lease lasts without renewal.
            limits: which batch to open.
            batch_id: if given, claims only this open batch.

        Returns:
            The claimed batch, or None when there is no batch.

        Raises:
            BatchLeased: if another owner holds a live lease.
            BatchNotOpen: if `batch_id` is not the consumer's open batch.
        """
        call = calls.batches.claim(queue, consumer, owner, ttl, limits, batch_id)

        def parse(rows: list[tuple[Any, ...]]) -> B | None:
            lease = call.parse(rows)
            return self._batch_class(self, queue, consumer, lease, ttl) if lease else None

        return Call(call.sql, call.params, parse)

    @operation
    def finish_batch(self, batch_id: int) -> Call[None]:
        """Finishes a batch that was opened without a lease."""
        return calls.batches.finish_batch(batch_id)

    @operation
    def batch_info(self, batch_id: int) -> Call[BatchInfo]:
        """Returns the ticks, times and event ids that an open batch spans."""
        return calls.batches.batch_info(batch_id)

    @operation
    def lease_info(self, queue: str, consumer: str) -> Call[LeaseInfo | None]:
        """Returns who holds, or last held, the open batch; None if no batch is open."""
        return calls.batches.lease_info(queue, consumer)
