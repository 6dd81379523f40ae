"""The states of many consumers in one query, to decide which batches are due."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from datetime import datetime

from ..models import Lease, Limits
from .call import Call, first


@dataclass(frozen=True)
class ConsumerState:
    """The state of a consumer, of a subconsumer or of a slot.

    Attributes:
        part: the subconsumer, or the slot such as 3/8; None for the consumer itself.
        role: None if the consumer is not registered.
        batch_id: the open batch; None if no batch is open.
        owner: who holds, or last held, its lease.
        is_live: whether that lease is still valid.
        is_due: whether no batch is open and the next one meets the limits.
        epoch: grows by one with each claim; None if the consumer is not registered.
        held_reason: why the open batch is held; None if it is not held.
        active_at: when the consumer last opened, claimed, renewed, released or finished a batch.
        read_at: when the state was read. All times are by the database's clock.
        deployment: the deployment to which the consumer belongs; None if it belongs to none yet.
    """

    queue: str
    consumer: str
    part: str | None
    queue_exists: bool
    role: str | None
    batch_id: int | None
    owner: str | None
    lease_until: datetime | None
    is_live: bool
    is_due: bool
    epoch: int | None
    held_reason: str | None
    active_at: datetime | None
    read_at: datetime
    deployment: str | None

    @property
    def slot(self) -> str | None:
        """The slot, if it is one of a partitioned consumer."""
        return self.part if self.role == "slot" else None

    @property
    def subconsumer(self) -> str | None:
        """The subconsumer, if it is one of a cooperative consumer."""
        return None if self.role == "slot" else self.part


def consumer_states(
    consumers: Sequence[tuple[str, str]], limits: Limits
) -> Call[list[ConsumerState]]:
    """The states of consumers, given as (queue, consumer), in that order."""
    return Call(
        "select queue_name, consumer_name, subconsumer_name, queue_exists, sub_role, batch_id, "
        "lease_owner, lease_until, is_live, is_due, lease_epoch, held_reason, "
        "active_at, read_at, deployment "
        "from pgque.consumer_states(%s::text[], %s::text[], %s, %s, %s, %s)",
        (
            [queue for queue, _ in consumers],
            [consumer for _, consumer in consumers],
            *astuple(limits),
        ),
        lambda rows: [ConsumerState(*row) for row in rows],
    )


def has_events(batch_id: int) -> Call[bool]:
    """Whether an open batch has any event."""
    return Call("select pgque.batch_has_events(%s)", (batch_id,), lambda rows: bool(rows[0][0]))


def needs_run(batch_id: int) -> Call[bool]:
    """Whether an open batch has events, or had some that were set aside by hand."""
    return Call(
        "select pgque.batch_has_events(%s) or pgque.set_aside_epoch(%s) is not null",
        (batch_id, batch_id),
        lambda rows: bool(rows[0][0]),
    )


def set_aside_epoch(batch_id: int) -> Call[int | None]:
    """The epoch of an open batch since events of it were set aside by hand; None if none were."""
    return Call("select pgque.set_aside_epoch(%s)", (batch_id,), first)


def hold(batch_id: int, epoch: int, reason: str) -> Call[None]:
    """Holds an open batch until the next claim, unless it was claimed since that epoch."""
    return Call("select pgque.hold_batch(%s, %s, %s)", (batch_id, epoch, reason), lambda rows: None)


def give_up(lease: Lease, reason: str) -> Call[int]:
    """Dead-letters all events of a leased batch and acks it; how many."""
    return Call(
        "select pgque.give_up_batch(%s, %s, %s, %s)",
        (lease.batch_id, reason, lease.owner, lease.epoch),
        lambda rows: int(rows[0][0]),
    )
