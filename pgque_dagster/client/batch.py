"""Batches: open or claim one, read it, report failed events, ack it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from dataclasses import astuple
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from . import plans
from .errors import BatchNotOpen, InvalidArgument
from .lease import LeaseKeeper, renew_batch
from .models import BatchInfo, History, Lease, LeaseInfo, Limits, Message, ReadPlan
from .operation import (
    AsyncFace,
    Call,
    Face,
    Finished,
    Hook,
    Row,
    Steps,
    first,
    nothing,
    operation,
    settled,
)
from .ranges import check_interval
from .read_batch import AckResult, Failures, ReadBatch
from .session import AsyncSession, Session

NO_LIMITS = Limits()
DEFAULT_TTL = timedelta(minutes=1)
# The number of ids per call. Each call scans the batch once, and holds its ids and reasons.
_IDS_PER_CALL = 250_000


def claim(
    queue: str,
    consumer: str,
    owner: str,
    ttl: timedelta,
    limits: Limits,
    batch_id: int | None,
    subconsumer: str | None = None,
) -> Call[Lease | None]:
    """Claims the open or next batch of a consumer or of one of its subconsumers."""
    check_interval("ttl", ttl)
    columns = "batch_id, epoch, lease_until, prev_tick_id, cur_tick_id"
    options = (owner, ttl, *astuple(limits), batch_id)

    def parse(rows: list[Row]) -> Lease | None:
        return read_lease(owner, rows[0])

    if subconsumer is None:
        sql = f"select {columns} from pgque.claim_batch(%s, %s, %s, %s, %s, %s, %s, %s, %s)"
        return Call(sql, (queue, consumer, *options), parse)
    sql = f"select {columns} from pgque.claim_coop(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
    return Call(sql, (queue, consumer, subconsumer, *options), parse)


def read_lease(owner: str, row: Row) -> Lease | None:
    """Reads batch_id, epoch, lease_until, prev_tick_id, cur_tick_id; None without a batch."""
    batch_id, epoch, until, prev_tick, tick = row
    return None if batch_id is None else Lease(batch_id, owner, epoch, until, prev_tick, tick)


def ack(lease: Lease) -> Call[None]:
    """Finishes a leased batch."""
    values = lease.batch_id, lease.owner, lease.epoch
    return Call("select pgque.ack_batch(%s, %s, %s)", values, nothing)


def release(batch_id: int, owner: str, epoch: int) -> Call[None]:
    """Releases a lease. The batch stays open, and any worker can claim it at once."""
    return Call("select pgque.release_batch(%s, %s, %s)", (batch_id, owner, epoch), nothing)


def give_up(lease: Lease, reason: str) -> Call[int]:
    """Dead-letters all events of a leased batch and acks it; returns how many."""
    return Call(
        "select pgque.give_up_batch(%s, %s, %s, %s)",
        (lease.batch_id, reason, lease.owner, lease.epoch),
        first,
    )


def hold(batch_id: int, epoch: int, reason: str) -> Call[None]:
    """Holds an open batch until the next claim, unless it was claimed since that epoch."""
    return Call("select pgque.hold_batch(%s, %s, %s)", (batch_id, epoch, reason), nothing)


def note_failing(batch_id: int, epoch: int | None, reason: str) -> Call[None]:
    """Records why an open batch fails, while it is retried until it succeeds."""
    return Call("select pgque.hold_batch(%s, %s, %s, true)", (batch_id, epoch, reason), nothing)


def lease_info(queue: str, consumer: str) -> Call[LeaseInfo | None]:
    """Returns who has, or last had, the lease on the open batch; None if no batch is open."""
    return Call(
        "select batch_id, owner, lease_until, epoch, is_live from pgque.get_lease_info(%s, %s)",
        (queue, consumer),
        lambda rows: LeaseInfo(*rows[0]) if rows else None,
    )


def batch_info(batch_id: int) -> Call[BatchInfo]:
    """Returns the ticks, times and event ids that an open batch spans."""

    def parse(rows: list[Row]) -> BatchInfo:
        if not rows:
            raise BatchNotOpen(
                f"batch {batch_id} is not open", "It was finished already, or never existed."
            )
        return BatchInfo(*rows[0])

    return Call(
        "select queue_name, consumer_name, batch_start, batch_end, prev_tick_id, tick_id, lag, "
        "seq_start, seq_end from pgque.get_batch_info(%s) where queue_name is not null",
        (batch_id,),
        parse,
    )


def batch_events(batch_id: int) -> Call[list[Message]]:
    """Returns all events of an open batch, in order of id."""
    return Call(
        "select ev_id, ev_type, ev_data, ev_retry, ev_time, "
        "ev_extra1, ev_extra2, ev_extra3, ev_extra4 from pgque.get_batch_events(%s)",
        (batch_id,),
        lambda rows: [Message(*row) for row in rows],
    )


def has_events(batch_id: int) -> Call[bool]:
    """Returns whether an open batch has any event."""
    return Call("select pgque.batch_has_events(%s)", (batch_id,), first)


def needs_run(batch_id: int) -> Call[bool]:
    """Returns whether an open batch has events, had some that were set aside, or a due table."""
    return Call(
        "select pgque.batch_has_events(%s) or pgque.set_aside_epoch(%s) is not null"
        " or pgque.has_table_due(%s)",
        (batch_id, batch_id, batch_id),
        first,
    )


def set_aside_epoch(batch_id: int) -> Call[int | None]:
    """Returns the epoch at which events of an open batch were set aside by hand, or None."""
    return Call("select pgque.set_aside_epoch(%s)", (batch_id,), first)


def finished_before(batch_id: int, max_events: int) -> Call[History]:
    """Returns how the consumer handled its newest events before the open batch."""
    return Call(
        "select finished, failed from pgque.finished_before(%s, %s)",
        (batch_id, max_events),
        lambda rows: History(*rows[0]),
    )


def identity(queue: str, lease: Lease) -> Call[tuple[UUID, str | None, str | None]]:
    """Returns the incarnation of the database, and the fingerprints of a leased batch's ticks."""
    return Call(
        "select pgque.incarnation(), pgque.tick_fingerprint(%s, %s), "
        "pgque.tick_fingerprint(%s, %s)",
        (queue, lease.prev_tick_id, queue, lease.tick_id),
        lambda rows: (rows[0][0], rows[0][1], rows[0][2]),
    )


def _failure_calls(lease: Lease, failures: Failures) -> Iterator[Call[int]]:
    """Yields the calls that write failures, with a limited number of ids each."""
    ids, reasons, after = failures.msg_ids, failures.reasons, failures.retry_after
    for start in range(0, len(ids), _IDS_PER_CALL):
        some = slice(start, start + _IDS_PER_CALL)
        texts: Sequence[str | None] = reasons if len(reasons) == 1 else reasons[some]
        if after is None:
            yield Call(
                "select pgque.dead_letter_batch(%s, %b::bigint[], %b::text[], %s, %s)",
                (lease.batch_id, list(ids[some]), list(texts), lease.owner, lease.epoch),
                first,
            )
        else:
            yield Call(
                "select pgque.nack_batch(%s, %b::bigint[], %s, %b::text[], %s, %s)",
                (lease.batch_id, list(ids[some]), after, list(texts), lease.owner, lease.epoch),
                first,
            )


class _Claimed(ReadBatch):
    """What `Batch` and `AsyncBatch` share; it does no input or output."""

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
        """The keeper of the lease inside a `keep_alive` block."""
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
        return batch_info(self.batch_id)

    @operation
    def events(self) -> Call[list[Message]]:
        """Returns all events in order of id."""
        return batch_events(self.batch_id)

    def plan_call(self, max_slices: int) -> Call[ReadPlan]:
        """Returns the call that splits the batch into slices. For readers, not for users."""
        return plans.read_plan(self.batch_id, max_slices)

    def history_call(self, max_events: int) -> Call[History] | None:
        """Returns the call for the handling of earlier events. For readers, not for users."""
        return finished_before(self.batch_id, max_events)

    def before_ack(self, step: Callable[[Any], object]) -> None:
        """Runs a function in the ack's transaction, so that both commit or neither does.

        Args:
            step: receives the connection and must not commit; may be a coroutine function for an
                `AsyncBatch`. If it raises, the batch is not acked. A repeated ack calls it again.
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
        call = ack(self.lease)
        return Call(call.sql, call.params, lambda rows: AckResult(0, 0))

    def _ack_steps(self) -> Steps[AckResult]:
        for step in self._steps:
            yield Hook(step)
        # Dead letters first, so that a dead-lettered event is not delivered again.
        counts = []
        for failed in (self._dead_lettered, self._nacked):
            counts.append(0)
            for failures in failed:
                for call in _failure_calls(self.lease, failures):
                    counts[-1] += yield call
        yield ack(self.lease)
        return AckResult(nacked=counts[1], dead_lettered=counts[0])

    @operation
    def renew(self) -> Call[datetime]:
        """Extends the lease by its original duration.

        Raises:
            LeaseLost: if the lease ran out and another owner took the batch over.
            BatchNotOpen: if the batch was acked.
        """
        return renew_batch(self.lease, self._ttl)

    @operation
    def release(self) -> Call[None]:
        """Releases the lease. The batch stays open, and any worker can claim it at once."""
        return release(self.batch_id, self.lease.owner, self.lease.epoch)


class Batch(_Claimed, Face):
    """A batch under a lease. `Client.claim` makes it.

    Attributes:
        queue: the queue's name.
        consumer: the consumer's name.
        slot: the slot and the number of slots, such as 3/8, of a partitioned consumer; else None.
        lease: who has it, under which epoch, and the ticks it spans.
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
    """A batch under a lease, for asyncio. `AsyncClient.claim` makes it, with `Batch`'s methods."""

    session: AsyncSession

    def keep_alive(self) -> AbstractAsyncContextManager[LeaseKeeper]:
        """Renews the lease while the block runs, as `Batch.keep_alive` does."""
        return self._kept(self.session.find_url())


def ack_empty(batch: Batch) -> None:
    """Acks an empty batch that is not stored, so that replicas know that they miss nothing."""
    if batch.slot is None:
        lease = batch.lease
        values = (batch.queue, batch.consumer, lease.tick_id, lease.prev_tick_id)
        query = "select pgque.note_stored(%s, %s, %s, %s)"
        batch.before_ack(lambda connection: connection.execute(query, values))
    batch.ack()


def read_plan(batch: ReadBatch, max_slices: int) -> ReadPlan:
    """Splits a batch into slices that can be read in parallel. For readers, not for users."""
    plan: ReadPlan = batch.session.run(batch.plan_call(max_slices))
    return plan
