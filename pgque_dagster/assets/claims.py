"""Claims the batch of a run: the one in its tags, or the next one of the consumer."""

from collections.abc import Callable, Sequence
from contextlib import suppress

import dagster as dg

from ..client import Batch, BatchLeased, BatchNotOpen, Client, Limits
from ..client.batch import ack_empty, needs_run
from ..client.holder import ConsumerState, Holder, consumer_states
from ..client.ranges import DEFAULT_MAX_EVENTS
from ..project.batch_run import BatchRun
from ..project.consumers import names_of
from ..project.keys import owner_of_step
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
    run = BatchRun.read(context.run.tags, consumption.holder, consumption.shard)
    if run is not None and run.incarnation not in ("", str(client.incarnation())):
        context.log.warning(
            f"Skipped: this run was requested for batch {run.batch_id} of another database, or of "
            "this one before a failover or a restore, where the number may stand for other events. "
            "The sensor requests a new run; to start one by hand, materialize the asset."
        )
        return None
    owner = owner_of_step(context.run.run_id, over_shards=consumption.shard is not None)
    ttl = consumption.lease_ttl

    def claim(holder: Holder, batch_id: int | None = None) -> Batch | None:
        return holder.claim(client, owner=owner, ttl=ttl, limits=_AT_ONCE, batch_id=batch_id)

    try:
        batch = claim(run.holder, run.batch_id) if run else _next(client, consumption, claim)
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


def _next(
    client: Client, consumption: Consumption, claim: Callable[[Holder], Batch | None]
) -> Batch | None:
    """Claims the next batch with events, and acks empty ones. Returns None if there is none."""
    holder = consumption.holder
    while True:
        main, *slots = client.run(consumer_states([(holder.queue, holder.consumer)], Limits()))
        is_partitioned = main.role == "partitioned"
        batch = _of_any(slots, consumption, claim) if is_partitioned else claim(holder)
        if batch is None or client.run(needs_run(batch.batch_id)):
            return batch
        ack_empty(batch)


def _of_any(
    slots: Sequence[ConsumerState],
    consumption: Consumption,
    claim: Callable[[Holder], Batch | None],
) -> Batch | None:
    """Claims for a slot without a live lease, first those with an open batch."""
    free = [each for each in slots if not each.is_live]
    if not free:
        raise BatchLeased(
            f"each of the {len(slots)} slots of {consumption} has a run in progress",
            "Materialize the asset again after one of these runs has ended.",
        )
    for each in sorted(free, key=lambda each: each.batch_id is None):
        # Another run may have claimed it meanwhile.
        with suppress(BatchLeased):
            if batch := claim(Holder.of(each)):
                return batch
    return None
