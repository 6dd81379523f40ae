"""A claimed batch: read it, say which events failed, ack it.

Failures are collected here and written in the ack's transaction, so they take effect only if the
batch is finished. A crash before the ack leaves no retry and no dead letter, so the next attempt
cannot create them twice.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg

from . import calls
from .calls.failures import Failures, Reason
from .lease import LeaseKeeper
from .models import BatchInfo, Lease, Message, ReadPlan
from .session import Session


@dataclass(frozen=True)
class AckResult:
    """How many events an ack scheduled for another delivery, and how many it dead-lettered."""

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
        self, session: Session, queue: str, consumer: str, lease: Lease, ttl: timedelta
    ) -> None:
        self.queue = queue
        self.consumer = consumer
        self.lease = lease
        self._session = session
        self._ttl = ttl
        self._nacked: list[Failures] = []
        self._dead_lettered: list[Failures] = []
        self._steps: list[Callable[[psycopg.Connection[tuple[Any, ...]]], object]] = []

    @property
    def batch_id(self) -> int:
        """The batch's id. Every attempt at the same events has the same id."""
        return self.lease.batch_id

    @property
    def session(self) -> Session:
        """The session that claimed the batch."""
        return self._session

    def info(self) -> BatchInfo:
        """Returns the ticks, times and event ids that the batch spans."""
        return self._session.run(calls.batches.batch_info(self.batch_id))

    def events(self) -> list[Message]:
        """Returns all events in order of id."""
        return self._session.run(calls.batches.batch_events(self.batch_id))

    def nack(
        self,
        msg_ids: Iterable[int],
        *,
        retry_after: timedelta = timedelta(minutes=1),
        reason: Reason = None,
    ) -> None:
        """Schedules events for another delivery, or dead-letters them once their retries run out.

        Takes effect at the ack, which raises `EventNotInBatch` for an id of another batch. An
        event passed to `dead_letter` as well becomes a dead letter only.

        Args:
            msg_ids: ids of the events; duplicates count once.
            retry_after: how long to wait before the next delivery.
            reason: stored with the dead letter of an event that has no retries left: one text for
                all events, or one for each id.

        Raises:
            InvalidArgument: if an id is not an integer, or the number of reasons differs from the
                number of ids.
        """
        self._nacked.append(Failures.of(msg_ids, reason, retry_after))

    def dead_letter(self, msg_ids: Iterable[int], *, reason: Reason) -> None:
        """Makes events dead letters. Takes effect at the ack, which checks the ids as for `nack`.

        Args:
            msg_ids: ids of the events; duplicates count once.
            reason: one text for all events, or one for each id.

        Raises:
            InvalidArgument: if an id is not an integer, or the number of reasons differs from the
                number of ids.
        """
        self._dead_lettered.append(Failures.of(msg_ids, reason, None))

    @property
    def requested(self) -> AckResult:
        """How many events were passed to `nack` and `dead_letter`; `ack` returns the outcome."""
        given_up = {msg_id for some in self._dead_lettered for msg_id in some.msg_ids}
        nacked = {msg_id for some in self._nacked for msg_id in some.msg_ids}
        return AckResult(len(nacked - given_up), len(given_up))

    def before_ack(self, step: Callable[[psycopg.Connection[tuple[Any, ...]]], object]) -> None:
        """Runs a function in the ack's transaction, so that both commit or neither does.

        Args:
            step: receives the connection and must not commit. If it raises, the batch is not
                acked. A repeated ack calls it again.
        """
        self._steps.append(step)

    def ack(self) -> AckResult:
        """Finishes the batch, and writes its nacks and dead letters, in one transaction.

        Raises:
            LeaseLost: if the lease ran out and another owner took the batch over.
            BatchNotOpen: if the batch was acked before.
        """
        with self._session.transaction() as connection:
            for step in self._steps:
                step(connection)
            # Dead letters first: a dead-lettered event must not be delivered again.
            dead_lettered = self._settle(self._dead_lettered)
            result = AckResult(self._settle(self._nacked), dead_lettered)
            self._session.run(calls.batches.ack(self.lease))
        return result

    def _settle(self, failures: list[Failures]) -> int:
        return sum(self._session.run(call) for some in failures for call in some.calls(self.lease))

    def renew(self) -> None:
        """Extends the lease by its original duration.

        Raises:
            LeaseLost: if the lease ran out and another owner took the batch over.
            BatchNotOpen: if the batch was acked.
        """
        self._session.run(calls.batches.renew(self.lease, self._ttl))

    def release(self) -> None:
        """Releases the lease. The batch stays open, and anybody can claim it at once."""
        self._session.run(calls.batches.release(self.lease))

    @contextmanager
    def keep_alive(self) -> Iterator[LeaseKeeper]:
        """Renews the lease in the background while the block runs.

        Yields:
            The keeper, whose `check()` raises once the lease is lost.
        """
        with LeaseKeeper(self._session.url, self.lease, self._ttl) as keeper:
            yield keeper


def read_plan(batch: Batch, max_slices: int) -> ReadPlan:
    """Splits a batch into slices that can be read in parallel. For readers, not for users."""
    return batch.session.run(calls.plans.read_plan(batch.batch_id, max_slices))
