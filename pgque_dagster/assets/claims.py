"""Claims the batch of a run: the one in its tags, or the next one of the consumer."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4

import dagster as dg

from ..client import Batch, BatchLeased, BatchNotOpen, Client, Limits
from ..client.calls.states import ConsumerState, consumer_states, needs_run
from ..client.cooperative import claim_shared
from ..client.partitions import claim_slot
from ..consumers import names_of
from ..keys import BATCH_ID, LINEAGE, SLOT, SUBCONSUMER
from ..queue_report import CHECK_TICKS, waiting_for_tick
from ..ranges import DEFAULT_MAX_EVENTS
from .consumption import Consumption

# Limits for the batch of a run by hand, which opens it itself.
_AT_ONCE = Limits(max_count=DEFAULT_MAX_EVENTS)


def claim_batch(
    context: dg.AssetExecutionContext, client: Client, consumption: Consumption
) -> Batch | None:
    """Claims the batch in the run's tags, or the next one with events.

    Returns:
        The batch; None if there is none for this run. The reason is logged.
    """
    tag = context.run.tags.get(BATCH_ID)
    lineage = context.run.tags.get(LINEAGE)
    if lineage is not None and lineage != str(client.lineage()):
        context.log.warning(
            f"Skipped: this run was requested for batch {tag} of another database, or of this one "
            "before a failover or a restore, where the number may stand for other events. The "
            "sensor requests a new run; to start one by hand, materialize the asset."
        )
        return None
    claims = _Claims(
        client,
        consumption,
        step_owner(context),
        context.run.tags.get(SUBCONSUMER),
        context.run.tags.get(SLOT),
    )
    try:
        batch = claims.open_one(int(tag)) if tag else claims.next()
    except (BatchLeased, BatchNotOpen) as error:
        context.log.warning(f"Skipped: {error}")
        return None
    if batch is None:
        waits = _what_waits(client, consumption)
        context.log.info(f"Skipped: {consumption} has no batch yet{waits}.")
    return batch


def _what_waits(client: Client, consumption: Consumption) -> str:
    """Returns how many events wait for a tick; an empty text if none does."""
    waiting = [
        info
        for info in client.consumers(consumption.queue)
        if consumption.consumer in names_of(info.name) and info.unticked_events
    ]
    return f", {waiting_for_tick(waiting[0])}: {CHECK_TICKS}" if waiting else ""


def step_owner(context: dg.AssetExecutionContext) -> str:
    """Returns the name under which this execution of a step claims batches.

    Each execution has its own: Dagster may start a step of a run again, by a RetryPolicy or because
    it lost sight of the step's pod, while the first process works on.
    """
    return f"step {uuid4().hex[:8]} of dagster run {context.run.run_id}"


@dataclass(frozen=True)
class _Claims:
    """Claims batches for a run.

    Args:
        client: the database.
        consumption: which consumer, and its lease TTL.
        owner: the owner to record in the lease.
        subconsumer: the subconsumer in the run's tags, if the consumer is a cooperative one.
        slot: the slot in the run's tags, if the consumer is a partitioned one.
    """

    client: Client
    consumption: Consumption
    owner: str
    subconsumer: str | None
    slot: str | None

    def open_one(self, batch_id: int) -> Batch | None:
        """Claims the open batch with this id, and no other."""
        if self.subconsumer is not None:
            return self._claim_subconsumer(self.subconsumer, batch_id)
        if self.slot is not None:
            return self._claim_slot(self.slot, batch_id)
        return self._claim_consumer(batch_id)

    def next(self) -> Batch | None:
        """Claims the next batch with events, and acks empty ones. Returns None if there is none."""
        while batch := self._next():
            if self.client.run(needs_run(batch.batch_id)):
                return batch
            batch.ack()
        return None

    def _next(self) -> Batch | None:
        if self.subconsumer is not None:
            return self._claim_subconsumer(self.subconsumer)
        if self.slot is not None:
            return self._claim_slot(self.slot)
        names = [(self.consumption.queue, self.consumption.consumer)]
        main, *members = self.client.run(consumer_states(names, Limits()))
        if main.role == "coop_main":
            return self._claim_any_subconsumer(members)
        if main.role == "partitioned":
            return self._claim_any_slot(members)
        return self._claim_consumer()

    def _claim_any_subconsumer(self, members: Sequence[ConsumerState]) -> Batch | None:
        """Claims through a subconsumer without a live lease, first those with an open batch."""
        free = [each.subconsumer for each in members if each.batch_id and not each.is_live]
        free += [each.subconsumer for each in members if not each.batch_id]
        for subconsumer in free:
            assert subconsumer is not None
            with suppress(BatchLeased):
                return self._claim_subconsumer(subconsumer)
        raise BatchLeased(
            f"each of the {len(members)} subconsumers of {self.consumption} has a run in progress",
            "Materialize the asset again after one of these runs has ended.",
        )

    def _claim_any_slot(self, slots: Sequence[ConsumerState]) -> Batch | None:
        """Claims a batch of a slot without a live lease, first of those with an open batch."""
        free = [each for each in slots if not each.is_live]
        for each in sorted(free, key=lambda each: each.batch_id is None):
            assert each.slot is not None
            with suppress(BatchLeased):
                if batch := self._claim_slot(each.slot):
                    return batch
        if not free:
            raise BatchLeased(
                f"each of the {len(slots)} slots of {self.consumption} has a run in progress",
                "Materialize the asset again after one of these runs has ended.",
            )
        return None

    def _claim_consumer(self, batch_id: int | None = None) -> Batch | None:
        return self.client.claim(
            self.consumption.queue,
            self.consumption.consumer,
            owner=self.owner,
            ttl=self.consumption.lease_ttl,
            limits=_AT_ONCE,
            batch_id=batch_id,
        )

    def _claim_subconsumer(self, subconsumer: str, batch_id: int | None = None) -> Batch | None:
        return claim_shared(
            self.client,
            self.consumption.queue,
            self.consumption.consumer,
            subconsumer,
            owner=self.owner,
            ttl=self.consumption.lease_ttl,
            limits=_AT_ONCE,
            batch_id=batch_id,
        )

    def _claim_slot(self, slot: str, batch_id: int | None = None) -> Batch | None:
        return claim_slot(
            self.client,
            self.consumption.queue,
            self.consumption.consumer,
            slot,
            owner=self.owner,
            ttl=self.consumption.lease_ttl,
            limits=_AT_ONCE,
            batch_id=batch_id,
        )
