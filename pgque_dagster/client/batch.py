"""A claimed batch: read it, say which events failed, ack it.

Failures are kept here and written in the transaction of the ack, so that they take effect if, and
only if, the batch is finished: a crash in between leaves neither a retry nor a dead letter behind
that the next attempt would double.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from . import calls
from .calls import Call
from .lease import LeaseKeeper
from .models import Lease, Message, ReadPlan

if TYPE_CHECKING:
    from .client import Client


@dataclass(frozen=True)
class AckResult:
    """What an ack wrote beside the position: events scheduled again or given up."""

    nacked: int
    dead_lettered: int


class Batch:
    """A batch under a lease. `Client.claim` makes it.

    Attributes:
        queue: the queue's name.
        consumer: the consumer's name.
        lease: who holds it, under which epoch, and the ticks it spans.
    """

    def __init__(
        self, client: "Client", queue: str, consumer: str, lease: Lease, ttl: timedelta
    ) -> None:
        self.queue = queue
        self.consumer = consumer
        self.lease = lease
        self._client = client
        self._ttl = ttl
        self._nacks: list[Call[int]] = []
        self._dead_letters: list[Call[int]] = []

    @property
    def batch_id(self) -> int:
        """The batch's id: the same for every attempt at the same events."""
        return self.lease.batch_id

    def events(self) -> list[Message]:
        """Returns all events in order of id."""
        return self._client.batch_events(self.batch_id)

    def read_plan(self, max_slices: int) -> ReadPlan:
        """Splits the batch for reading side by side."""
        return self._client.read_plan(self.batch_id, max_slices)

    def nack(
        self,
        msg_ids: Iterable[int],
        *,
        retry_after: timedelta = timedelta(minutes=1),
        reason: str | None = None,
    ) -> None:
        """Has events delivered again later, or given up when their retries are used up.

        Takes effect with the ack, which raises `EventNotInBatch` for an id of another batch.
        """
        self._nacks.append(calls.nack_batch(self.batch_id, list(msg_ids), retry_after, reason))

    def dead_letter(self, msg_ids: Iterable[int], *, reason: str) -> None:
        """Gives events up: they become dead letters with the ack."""
        self._dead_letters.append(calls.dead_letter_batch(self.batch_id, list(msg_ids), reason))

    def ack(self) -> AckResult:
        """Finishes the batch, with what was nacked and dead-lettered, in one transaction.

        Raises:
            LeaseLost: if the lease ran out and another owner took the batch over.
            BatchNotOpen: if the batch was acked before.
        """
        with self._client.transaction():
            result = AckResult(
                nacked=sum(map(self._client.run, self._nacks)),
                dead_lettered=sum(map(self._client.run, self._dead_letters)),
            )
            self._client.run(calls.ack(self.lease))
        return result

    def release(self) -> None:
        """Gives the claim back: the batch stays open and anybody may claim it at once."""
        self._client.run(calls.release(self.lease))

    @contextmanager
    def kept(self) -> Iterator[LeaseKeeper]:
        """Renews the lease in the background while the block runs.

        Yields:
            The keeper, whose `check()` raises once the lease is lost.
        """
        with LeaseKeeper(self._client.url, self.lease, self._ttl) as keeper:
            yield keeper
