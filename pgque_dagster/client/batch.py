"""A claimed batch: read it, say which events failed, ack it.

Failures are collected here and written in the ack's transaction, so they take effect only if the
batch is finished. A crash before the ack leaves no retry and no dead letter, so the next attempt
cannot create them twice.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
)
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from . import calls
from .calls.call import Call, Hook, Steps
from .calls.failures import Failures, Reason
from .errors import InvalidArgument
from .faces import Finished, settled
from .lease import LeaseKeeper
from .models import BatchInfo, History, Lease, Message, ReadPlan
from .operation import AsyncFace, Face, operation
from .read_batch import ReadBatch
from .session import AsyncSession, Session


@dataclass(frozen=True)
class AckResult:
    """How many events an ack scheduled for another delivery, and how many it dead-lettered."""

    nacked: int
    dead_lettered: int


class Settling:
    """Events under one id, with those that failed and the checks before results are published.

    Attributes:
        session: of the database.
        queue: the queue's name.
        consumer: the consumer's name.
        slot: the slot and the number of slots, such as 3/8, of a partitioned consumer; else None.
        lease: the batch's id, its epoch, and the ticks it spans.
    """

    def __init__(
        self, session: Any, queue: str, consumer: str, lease: Lease, *, slot: str | None = None
    ) -> None:
        self.session = session
        self.queue = queue
        self.consumer = consumer
        self.slot = slot
        self.lease = lease
        self._nacked: list[Failures] = []
        self._dead_lettered: list[Failures] = []
        self._checks: list[Callable[[], object]] = []

    @property
    def batch_id(self) -> int:
        """The batch's id. Every attempt at the same events has the same id."""
        return self.lease.batch_id

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
                number of ids; or if the batch is one of a slot.
        """
        if self.slot is not None:
            raise InvalidArgument(
                f"slot {self.slot} of {self.queue}/{self.consumer} keeps the events of each key in "
                "order, and an event that is delivered again would come after later ones",
                "Dead-letter the event, or raise, so that the whole batch is tried again.",
            )
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

    def before_publishing(self, check: Callable[[], object]) -> None:
        """Runs a function before results are published, at the latest before the ack.

        It may call `nack` and `dead_letter`. For readers, not for users.

        Args:
            check: runs once, unless it raises: then nothing is published, and it runs again before
                any further attempt to publish or to ack.
        """
        self._checks.append(check)

    def run_checks(self) -> None:
        """Runs what `before_publishing` was given. For sinks, not for users."""
        while self._checks:
            self._checks[0]()
            self._checks.pop(0)


class _Claimed(Settling):
    """What both faces of a batch have in common; neither reads nor writes."""

    def __init__(
        self,
        session: Any,
        queue: str,
        consumer: str,
        lease: Lease,
        ttl: timedelta,
        *,
        slot: str | None = None,
    ) -> None:
        super().__init__(session, queue, consumer, lease, slot=slot)
        self._ttl = ttl
        self._keeper: LeaseKeeper | None = None
        self._steps: list[Callable[[Any], object]] = []

    @property
    def keeper(self) -> LeaseKeeper | None:
        """What keeps the lease alive, in a block of `keep_alive`."""
        return self._keeper

    @asynccontextmanager
    async def _kept(self, url: str | Awaitable[str]) -> AsyncIterator[LeaseKeeper]:
        known_url = await settled(url)
        if self.session.holds_callers_transaction:
            raise InvalidArgument(
                f"the lease on batch {self.batch_id} cannot be renewed, because the claim may "
                "be part of an open transaction, which no other connection sees",
                "Commit after the claim, before keep_alive(), or give the client a connection in "
                "autocommit mode.",
            )
        with LeaseKeeper(known_url, self.lease, self._ttl) as keeper:
            self._keeper = keeper
            try:
                yield keeper
            finally:
                self._keeper = None

    @operation
    def info(self) -> Call[BatchInfo]:
        """Returns the ticks, times and event ids that the batch spans."""
        return calls.batches.batch_info(self.batch_id)

    @operation
    def events(self) -> Call[list[Message]]:
        """Returns all events in order of id."""
        return calls.batches.batch_events(self.batch_id)

    def plan_call(self, max_slices: int) -> Call[ReadPlan]:
        """Returns the call that splits the batch into slices. For readers, not for users."""
        return calls.plans.read_plan(self.batch_id, max_slices)

    def history_call(self, max_events: int) -> Call[History] | None:
        """Returns the call for how the consumer fared before the batch; None without a consumer.

        For readers, not for users.
        """
        return calls.batches.finished_before(self.batch_id, max_events)

    def before_ack(self, step: Callable[[Any], object]) -> None:
        """Runs a function in the ack's transaction, so that both commit or neither does.

        Args:
            step: receives the connection and must not commit; may be a coroutine function for an
                `AsyncBatch`. If it raises, the batch is not
                acked. A repeated ack calls it again.
        """
        self._steps.append(step)

    @operation
    def ack(self) -> Call[AckResult] | Steps[AckResult]:
        """Finishes the batch, and writes its nacks and dead letters, in one transaction.

        Raises:
            LeaseLost: if the lease ran out and another owner took the batch over.
            BatchNotOpen: if the batch was acked before.
        """
        # Before the transaction, because a check may take long.
        self.run_checks()
        if self._steps or self._dead_lettered or self._nacked:
            return self._ack_steps()
        ack = calls.batches.ack(self.lease)
        return Call(ack.sql, ack.params, lambda rows: AckResult(0, 0))

    def _ack_steps(self) -> Steps[AckResult]:
        for step in self._steps:
            yield Hook(step)
        # Dead letters first: a dead-lettered event must not be delivered again.
        dead_lettered = 0
        for failures in self._dead_lettered:
            for call in failures.calls(self.lease):
                dead_lettered += yield call
        nacked = 0
        for failures in self._nacked:
            for call in failures.calls(self.lease):
                nacked += yield call
        yield calls.batches.ack(self.lease)
        return AckResult(nacked, dead_lettered)

    @operation
    def renew(self) -> Call[Any]:
        """Extends the lease by its original duration.

        Raises:
            LeaseLost: if the lease ran out and another owner took the batch over.
            BatchNotOpen: if the batch was acked.
        """
        return calls.batches.renew(self.lease, self._ttl)

    @operation
    def release(self) -> Call[Any]:
        """Releases the lease. The batch stays open, and anybody can claim it at once."""
        return calls.batches.release(self.lease)


class Batch(_Claimed, Face):
    """A batch under a lease. `Client.claim` makes it.

    Attributes:
        queue: the queue's name.
        consumer: the consumer's name.
        slot: the slot and the number of slots, such as 3/8, of a partitioned consumer; else None.
        lease: who holds it, under which epoch, and the ticks it spans.
    """

    session: Session

    def keep_alive(self) -> AbstractContextManager[LeaseKeeper]:
        """Renews the lease in the background while the block runs.

        The block gets the keeper, whose `check()` raises once the lease is lost.

        Raises:
            InvalidArgument: if the claim may be part of a transaction that is not committed.
        """
        return Finished(self._kept(self.session.url))


class AsyncBatch(_Claimed, AsyncFace):
    """A batch under a lease, for asyncio. `AsyncClient.claim` makes it.

    Attributes:
        queue: the queue's name.
        consumer: the consumer's name.
        lease: who holds it, under which epoch, and the ticks it spans.
    """

    session: AsyncSession

    def keep_alive(self) -> AbstractAsyncContextManager[LeaseKeeper]:
        """Renews the lease while the block runs, as `Batch.keep_alive` does."""
        return self._kept(self.session.find_url())


def read_plan(batch: ReadBatch, max_slices: int) -> ReadPlan:
    """Splits a batch into slices that can be read in parallel. For readers, not for users."""
    return batch.session.run(batch.plan_call(max_slices))
