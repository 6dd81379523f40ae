"""Holders of batches: a consumer, one of its subconsumers or slots; and their states."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from datetime import datetime, timedelta
from typing import Self

from .batch import NO_LIMITS, Batch, claim
from .models import ConsumingAsset, Limits
from .operation import Call, first
from .session import Session


@dataclass(frozen=True)
class ConsumerState:
    """The state of a consumer, a subconsumer or a slot.

    Attributes:
        member: the subconsumer, or the slot such as 3/8; None for the consumer itself.
        role: None if the consumer is not registered.
        batch_id: the open batch; None if no batch is open.
        owner: the current or last owner of its lease.
        is_live: whether that lease is still valid.
        is_due: whether no batch is open and the next one meets the limits.
        epoch: grows by one with each claim; None if the consumer is not registered.
        held_reason: why the open batch is held; None if it is not.
        active_at: when the consumer last opened, claimed, renewed, released or finished a batch.
        read_at: when the state was read. All times are by the database's clock.
        belongs_to: the Dagster asset to which the consumer belongs, as far as it is known.
    """

    queue: str
    consumer: str
    member: str | None
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
    belongs_to: ConsumingAsset

    @property
    def slot(self) -> str | None:
        """The slot of a partitioned consumer, or None."""
        return self.member if self.role == "slot" else None

    @property
    def subconsumer(self) -> str | None:
        """The subconsumer of a cooperative consumer, or None."""
        return None if self.role == "slot" else self.member


def consumer_states(
    consumers: Sequence[tuple[str, str]], limits: Limits
) -> Call[list[ConsumerState]]:
    """Returns the states of consumers, given as (queue, consumer), in that order."""
    return Call(
        "select queue_name, consumer_name, subconsumer_name, queue_exists, sub_role, batch_id, "
        "lease_owner, lease_until, is_live, is_due, lease_epoch, held_reason, "
        "active_at, read_at, deployment, location, coalesce(assets, '{}') "
        "from pgque.consumer_states(%s::text[], %s::text[], %s, %s, %s, %s)",
        (
            [queue for queue, _ in consumers],
            [consumer for _, consumer in consumers],
            *astuple(limits),
        ),
        lambda rows: [
            ConsumerState(*[*row[:-3], ConsumingAsset(row[-3], row[-2], tuple(row[-1]))])
            for row in rows
        ],
    )


@dataclass(frozen=True)
class Holder:
    """The holder of a batch: a consumer, one of its subconsumers, or a slot such as 3/8."""

    queue: str
    consumer: str
    subconsumer: str | None = None
    slot: str | None = None

    @property
    def name(self) -> str:
        """The name that the queue knows it by."""
        if self.slot is not None:
            return f"{self.consumer}#{self.slot}"
        return self.consumer if self.subconsumer is None else f"{self.consumer}.{self.subconsumer}"

    def claim(
        self,
        client: Session,
        *,
        owner: str,
        ttl: timedelta,
        limits: Limits = NO_LIMITS,
        batch_id: int | None = None,
    ) -> Batch | None:
        """Claims the next batch, or the open batch if no live lease is on it, as `Client.claim`.

        Limits of a slot count the events of all slots.

        Returns:
            The claimed batch, or None when there is no batch.

        Raises:
            BatchLeased: if another owner has a live lease.
            BatchNotOpen: if `batch_id` is not the open batch.
            ConsumerNotFound: if the consumer has no such slot, or another number of slots.
        """
        name = self.consumer if self.subconsumer is not None else self.name
        lease = client.run(claim(self.queue, name, owner, ttl, limits, batch_id, self.subconsumer))
        if lease is None:
            return None
        return Batch(client, self.queue, self.consumer, lease, ttl, slot=self.slot)

    def open(self, limits: Limits) -> Call[tuple[int, int] | None]:
        """Opens the next batch for another session to claim; returns its id and its epoch."""
        return Call(
            "select batch_id, epoch from pgque.open_to_claim(%s, %s, %s, %s, %s, %s)",
            (self.queue, self.name, *astuple(limits)),
            lambda rows: None if rows[0][0] is None else (rows[0][0], rows[0][1]),
        )

    def register_subconsumer(self) -> Call[bool]:
        """Registers the subconsumer; False if it exists. Converts a consumer without a batch."""
        return Call(
            "select pgque.register_subconsumer(%s, %s, %s, true) = 1",
            (self.queue, self.consumer, self.subconsumer),
            first,
        )

    @classmethod
    def of(cls, state: ConsumerState) -> Self:
        """Returns the holder of which this is the state."""
        return cls(state.queue, state.consumer, state.subconsumer, state.slot)
