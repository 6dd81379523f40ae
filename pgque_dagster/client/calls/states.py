"""Many consumers at a glance, for whoever decides which batches get a worker."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from datetime import datetime

from ..models import Lease, Limits
from .call import Call


@dataclass(frozen=True)
class ConsumerState:
    """Where a consumer, or a subconsumer of a shared one, stands.

    Attributes:
        subconsumer: None for the consumer itself.
        role: None where the consumer is not registered.
        batch_id: the open batch; None when none is open.
        owner: who holds, or last held, the lease on it.
        is_live: whether that lease has not run out.
        is_due: whether none is open, and the next one within the limits could be.
        epoch: grows by one with each claim; None where the consumer is not registered.
        held_reason: why the open batch is held; None when it is not.
    """

    queue: str
    consumer: str
    subconsumer: str | None
    queue_exists: bool
    role: str | None
    batch_id: int | None
    owner: str | None
    lease_until: datetime | None
    is_live: bool
    is_due: bool
    epoch: int | None
    held_reason: str | None


def consumer_states(
    consumers: Sequence[tuple[str, str]], limits: Limits
) -> Call[list[ConsumerState]]:
    """The states of consumers, given as (queue, consumer), in that order."""
    return Call(
        "select queue_name, consumer_name, subconsumer_name, queue_exists, sub_role, batch_id, "
        "lease_owner, lease_until, is_live, is_due, lease_epoch, held_reason "
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


def hold(batch_id: int, epoch: int, reason: str) -> Call[None]:
    """An open batch held until it is claimed once more, unless it was claimed since that epoch."""
    return Call("select pgque.hold_batch(%s, %s, %s)", (batch_id, epoch, reason), lambda rows: None)


def give_up(lease: Lease, reason: str) -> Call[int]:
    """All events of a leased batch to the dead letters, and the batch acked; how many."""
    return Call(
        "select pgque.give_up_batch(%s, %s, %s, %s)",
        (lease.batch_id, reason, lease.owner, lease.epoch),
        lambda rows: int(rows[0][0]),
    )
