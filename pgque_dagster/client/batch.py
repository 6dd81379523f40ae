"""A claimed batch: read it, say which events failed, ack it.

Failures are kept here and written in the transaction of the ack, so that they take effect if, and
only if, the batch is finished: a crash in between leaves neither a retry nor a dead letter behind
that the next attempt would double.
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
        """The batch's id: the same for every attempt at the same events."""
        return self.lease.batch_id

    @property
    def session(self) -> Session:
        """The database that the batch is of."""
        return self._session

    def info(self) -> BatchInfo:
        """Returns what the batch spans."""
        return self._session.run(calls.batches.batch_info(self.batch_id))

    def events(self) -> list[Message]:
        """Returns all events in order of id."""
        return self._session.run(calls.batches.batch_events(self.batch_id))

    def read_plan(self, max_slices: int) -> ReadPlan:
        """Splits the batch for reading side by side."""
        return self._session.run(calls.plans.read_plan(self.batch_id, max_slices))

    def nack(
        self,
        msg_ids: Iterable[int],
        *,
        retry_after: timedelta = timedelta(minutes=1),
        reason: Reason = None,
    ) -> None:
        """Has events delivered again later, or given up when their retries are used up.

        Takes effect with the ack, which raises `EventNotInBatch` for an id of another batch. An
        event that is given up as well is only that.

        Args:
            msg_ids: which; one given twice counts once.
            retry_after: when.
            reason: kept with the dead letter of those whose retries are used up: one text for all,
                or one for each id.

        Raises:
            InvalidArgument: if an id is no whole number, or there are not as many reasons as ids.
        """
        self._nacked.append(Failures.of(msg_ids, reason, retry_after))

    def dead_letter(self, msg_ids: Iterable[int], *, reason: Reason) -> None:
        """Gives events up: they become dead letters with the ack, which treats ids like `nack`'s.

        Args:
            msg_ids: which; one given twice counts once.
            reason: why: one text for all, or one for each id.

        Raises:
            InvalidArgument: if an id is no whole number, or there are not as many reasons as ids.
        """
        self._dead_lettered.append(Failures.of(msg_ids, reason, None))

    @property
    def requested(self) -> AckResult:
        """How many events `nack` and `dead_letter` were told of; the ack says what came of it."""
        given_up = {msg_id for some in self._dead_lettered for msg_id in some.msg_ids}
        nacked = {msg_id for some in self._nacked for msg_id in some.msg_ids}
        return AckResult(len(nacked - given_up), len(given_up))

    def before_ack(self, step: Callable[[psycopg.Connection[tuple[Any, ...]]], object]) -> None:
        """Has something done in the transaction of the ack, so that the two stand or fall together.

        Args:
            step: takes the connection; it must not commit. What it raises keeps the batch from
                being acked. An ack that failed and is tried again calls it again.
        """
        self._steps.append(step)

    def ack(self) -> AckResult:
        """Finishes the batch, with what was nacked and dead-lettered, in one transaction.

        Raises:
            LeaseLost: if the lease ran out and another owner took the batch over.
            BatchNotOpen: if the batch was acked before.
        """
        with self._session.transaction() as connection:
            for step in self._steps:
                step(connection)
            # Given up first: what is a dead letter is not delivered again.
            dead_lettered = self._settle(self._dead_lettered)
            result = AckResult(self._settle(self._nacked), dead_lettered)
            self._session.run(calls.batches.ack(self.lease))
        return result

    def _settle(self, failures: list[Failures]) -> int:
        return sum(self._session.run(call) for some in failures for call in some.calls(self.lease))

    def renew(self) -> None:
        """Prolongs the lease, by the time that it was claimed for.

        Raises:
            LeaseLost: if the lease ran out and another owner took the batch over.
            BatchNotOpen: if the batch was acked.
        """
        self._session.run(calls.batches.renew(self.lease, self._ttl))

    def release(self) -> None:
        """Gives the claim back: the batch stays open and anybody may claim it at once."""
        self._session.run(calls.batches.release(self.lease))

    @contextmanager
    def keep_alive(self) -> Iterator[LeaseKeeper]:
        """Renews the lease in the background while the block runs.

        Yields:
            The keeper, whose `check()` raises once the lease is lost.
        """
        with LeaseKeeper(self._session.url, self.lease, self._ttl) as keeper:
            yield keeper
