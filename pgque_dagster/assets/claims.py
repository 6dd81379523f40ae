"""Claims the batch of a run: the one in its tags, or the next one of the consumer."""

from collections.abc import Sequence
from dataclasses import dataclass

import dagster as dg

from ..client import Batch, BatchLeased, BatchNotOpen, Client, Limits
from ..client.calls.states import ConsumerState, consumer_states, needs_run
from ..client.holder import Holder
from ..client.ranges import DEFAULT_MAX_EVENTS
from ..project.consumers import names_of
from ..project.keys import BATCH_ID, INCARNATION, holder_of, owner_of_step
from ..project.queue_report import CHECK_TICKS, waiting_for_tick
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
    incarnation = context.run.tags.get(INCARNATION)
    if incarnation is not None and incarnation != str(client.incarnation()):
        context.log.warning(
            f"Skipped: this run was requested for batch {tag} of another database, or of this one "
            "before a failover or a restore, where the number may stand for other events. The "
            "sensor requests a new run; to start one by hand, materialize the asset."
        )
        return None
    claims = _Claims(client, consumption, owner_of_step(context.run.run_id))
    holder = holder_of(consumption.queue, consumption.consumer, context.run.tags)
    try:
        batch = claims.claim(holder, int(tag)) if tag else claims.next(holder)
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


@dataclass(frozen=True)
class _Claims:
    """Claims batches for a run.

    Args:
        client: the database.
        consumption: which consumer, and its lease TTL.
        owner: the owner to record in the lease.
    """

    client: Client
    consumption: Consumption
    owner: str

    def claim(self, holder: Holder, batch_id: int | None = None) -> Batch | None:
        """Claims the open or next batch; with `batch_id`, no other."""
        ttl = self.consumption.lease_ttl
        return holder.claim(
            self.client, owner=self.owner, ttl=ttl, limits=_AT_ONCE, batch_id=batch_id
        )

    def next(self, holder: Holder) -> Batch | None:
        """Claims the next batch with events, and acks empty ones. Returns None if there is none."""
        while batch := self._next(holder):
            if self.client.run(needs_run(batch.batch_id)):
                return batch
            batch.ack()
        return None

    def _next(self, holder: Holder) -> Batch | None:
        if holder.name != holder.consumer:
            return self.claim(holder)
        names = [(holder.queue, holder.consumer)]
        main, *parts = self.client.run(consumer_states(names, Limits()))
        if main.role not in ("coop_main", "partitioned"):
            return self.claim(holder)
        return self._claim_any(parts, is_shared=main.role == "coop_main")

    def _claim_any(self, parts: Sequence[ConsumerState], *, is_shared: bool) -> Batch | None:
        """Claims for a subconsumer or slot without a live lease, first those with an open batch."""
        free = [each for each in parts if not each.is_live]
        was_leased = not free
        for each in sorted(free, key=lambda each: each.batch_id is None):
            try:
                batch = self.claim(Holder.of(each))
            except BatchLeased:
                was_leased = is_shared
                continue
            # What one subconsumer does not find, the others do not either.
            if batch is not None or is_shared:
                return batch
        if was_leased:
            kind = "subconsumers" if is_shared else "slots"
            raise BatchLeased(
                f"each of the {len(parts)} {kind} of {self.consumption} has a run in progress",
                "Materialize the asset again after one of these runs has ended.",
            )
        return None
