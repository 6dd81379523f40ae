"""Who holds a batch: a consumer, one of its subconsumers, or one of its slots."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from . import calls
from .batch import Batch
from .calls.call import Call
from .calls.states import ConsumerState
from .models import Limits
from .session import Session


@dataclass(frozen=True)
class Holder:
    """Who holds a batch.

    Attributes:
        queue: the queue's name.
        consumer: the consumer's name.
        subconsumer: the subconsumer, if the consumer is a cooperative one.
        slot: the slot and the number of slots, such as 3/8, if the consumer is a partitioned one.
    """

    queue: str
    consumer: str
    subconsumer: str | None = None
    slot: str | None = None

    @property
    def name(self) -> str:
        """The name under which the queue knows it."""
        if self.slot is not None:
            return f"{self.consumer}#{self.slot}"
        return self.consumer if self.subconsumer is None else f"{self.consumer}.{self.subconsumer}"

    def claim(
        self,
        client: Session,
        *,
        owner: str,
        ttl: timedelta,
        limits: Limits | None = None,
        batch_id: int | None = None,
    ) -> Batch | None:
        """Claims the next batch, or the open batch if no live lease is on it.

        Args:
            client: the database.
            owner: who claims the batch; others see this name.
            ttl: how long the lease lasts without renewal.
            limits: which batch to open. Those of a slot count the events of all slots.
            batch_id: if given, claims only this open batch.

        Returns:
            The claimed batch, or None when there is no batch.

        Raises:
            BatchLeased: if another owner holds a live lease.
            BatchNotOpen: if `batch_id` is not the open batch.
            ConsumerNotFound: if the consumer has no such slot, or another number of slots.
        """
        chosen = limits or Limits()
        name = self.consumer if self.subconsumer is not None else self.name
        lease = client.run(
            calls.batches.claim(self.queue, name, owner, ttl, chosen, batch_id, self.subconsumer)
        )
        if lease is None:
            return None
        return Batch(client, self.queue, self.consumer, lease, ttl, slot=self.slot)

    def register_subconsumer(self) -> Call[bool]:
        """Registers the subconsumer; False if it exists. Converts a consumer without a batch."""
        return Call(
            "select pgque.register_subconsumer(%s, %s, %s, true) = 1",
            (self.queue, self.consumer, self.subconsumer),
            lambda rows: bool(rows[0][0]),
        )

    @classmethod
    def of(cls, state: ConsumerState) -> Self:
        """Returns whose state it is."""
        return cls(state.queue, state.consumer, state.subconsumer, state.slot)
