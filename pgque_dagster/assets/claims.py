"""Claims the batch in the tags of a step's run, or the next one; for several shards, one of each.

What a sink stores of several databases is final (`spark/sinks/publication.py`). So a step first
acks the batches that an earlier one stored, and computes the others. Of several databases, those
that cannot be reached are left out.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from ..client import Batch, BatchLeased, BatchNotOpen, Client, InvalidArgument, Limits, PgqueError
from ..client.batch import ack_empty, needs_run
from ..client.holder import ConsumerState, Holder, consumer_states
from ..client.ranges import DEFAULT_MAX_EVENTS
from ..client.sharded_claim import ShardedClaim
from ..client.window import Window
from ..project.batch_run import BatchRun
from ..project.consumers import names_of
from ..project.keys import BATCH_ID, owner_of_step
from ..project.queue_report import CHECK_TICKS, waiting_for_tick
from ..project.resource import PgqueResource
from ..project.step_errors import noting_what_passes
from .batch_io_manager import BatchIOManager
from .consumption import Consumption
from .earlier_runs import refuse_batch_of_one
from .new_batches import batch_of
from .outputs import StepResult
from .prepare import prepare_consumer, warn_of_late_checks

# Limits for the batch of a manual run, which opens it itself.
_AT_ONCE = Limits(max_count=DEFAULT_MAX_EVENTS)


@dataclass
class Claims:
    """The claims of a step.

    Attributes:
        found: the batches or windows to compute, by the names of their databases.
        errors: why other databases are left out.
    """

    context: dg.AssetExecutionContext
    sink: Any = None
    found: dict[str, Batch | Window] = field(default_factory=dict)
    errors: list[PgqueError] = field(default_factory=list)
    _acked: list[Batch] = field(default_factory=list)

    def ack(self, batch: Batch, of: str, vector: int | None = None) -> None:
        """Acks a batch. If a vector has stored it and this fails, the next run acks it."""
        try:
            result = batch.ack()
            self._acked.append(batch)
            self.context.log.info(
                f"Acked batch {batch.batch_id} of {of}: {result.nacked} events will be delivered "
                f"again, {result.dead_lettered} became dead letters."
            )
            if vector is not None:
                self.sink.forget(batch, vector)
        except PgqueError as error:
            if vector is None:
                raise
            self.context.log.warning(
                f"Batch {batch.batch_id} of {of} is stored. If it is not acked, the next run acks "
                f"it: {error}"
            )

    def release(self, batch: Batch) -> None:
        """Releases a batch that was not acked."""
        if batch not in self._acked:
            with suppress(PgqueError):
                batch.release()

    def ack_stored(self) -> Generator[StepResult, None, bool]:
        """Acks batches that an earlier run stored. Removes these and refused ones from `found`.

        Yields:
            The materialization of each vector that an earlier run stored and did not record.

        Returns:
            Whether there were any.
        """
        log, stored = self.context.log, {}
        for shard, vector in self.sink.stored(ShardedClaim(self.found)).items():
            batch: Any = self.found.pop(shard)
            if isinstance(vector, InvalidArgument):
                log.error(f"Shard {shard} is left out: {vector}")
                self.errors.append(vector)
                continue
            log.info(f"An earlier run stored batch {batch.batch_id} of shard {shard}.")
            stored[shard] = (batch, vector)
        vectors = {vector for _, vector in stored.values()}
        key, instance = self.context.asset_key, self.context.instance
        newest = instance.fetch_materializations(key, limit=100).records
        # Recorded before the acks, because no run would do it after them.
        for vector in vectors.difference(map(batch_of, newest)):
            yield dg.AssetMaterialization(key, metadata={BATCH_ID: str(vector)})
        for shard, (batch, vector) in stored.items():
            self.ack(batch, f"shard {shard}", vector)
        return bool(vectors)


def claim_batches(
    consumption: Consumption,
    context: dg.AssetExecutionContext,
    resources: Mapping[str, PgqueResource],
    stack: ExitStack,
) -> Claims:
    """Claims the batch of a run; of a queue over several databases, the batch of each.

    When the stack closes, batches that were not acked are released.

    Raises:
        QueueNotFound: if there is no such queue.
        ConsumerNotFound: if the consumer was removed while its batch waited for this run.
        CallRefused: if the consumer belongs to another asset, code location or deployment.
        InvalidArgument: if the IO manager does not store batches of several shards.
    """
    claims = Claims(context, _sink_of(context) if consumption.shards else None)
    if not consumption.shards:
        warn_of_late_checks(context)
    named = [
        each
        for each in consumption.shards
        if BatchRun.read(context.run.tags, consumption.holder, each.name)
    ]
    for database in named or consumption.databases:
        pgque = resources[database.name]
        each = consumption.of_shard(database) if consumption.shards else consumption
        try:
            client = stack.enter_context(pgque.client())
            prepare_consumer(each, context, pgque, client)
            if consumption.shards:
                refuse_batch_of_one(context, client, each, claims.sink)
            batch = _claim_batch(context, client, each)
        except PgqueError as error:
            if not consumption.shards:
                raise
            context.log.warning(f"Shard {database.name} is left out: {error}")
            claims.errors.append(error)
            continue
        if batch is not None:
            if not claims.found:
                stack.enter_context(noting_what_passes(context.instance, context.run.run_id))
            claims.found[database.name] = batch
            stack.callback(claims.release, batch)
            stack.enter_context(batch.keep_alive())
    return claims


def _sink_of(context: dg.AssetExecutionContext) -> Any:
    ((name, key),) = context.assets_def.keys_by_output_name.items()
    manager = getattr(context.resources, context.op_def.output_def_named(name).io_manager_key)
    if not isinstance(manager, BatchIOManager):
        raise InvalidArgument(
            f"{type(manager).__name__} does not store the batches of several shards",
            "Use an IO manager of this package, such as DeltaBatchIOManager, for an asset with "
            "databases=[…].",
        )
    return manager.sink_of(key, context.assets_def.metadata_by_key[key], over_shards=True)


def _claim_batch(
    context: dg.AssetExecutionContext, client: Client, consumption: Consumption
) -> Batch | None:
    """Claims the batch in the run's tags, or the next one with events.

    Returns:
        The batch; None if there is no batch for this run. The reason is logged.
    """
    run = BatchRun.read(context.run.tags, consumption.holder, consumption.shard)
    if run is not None and run.incarnation not in ("", str(client.incarnation())):
        context.log.warning(
            f"Skipped: this run was requested for batch {run.batch_id} of another database, or of "
            "this one before a failover or a restore, where the number may mean other events. "
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
    """Returns how many events wait for a tick, or an empty string."""
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
    """Claims for a slot without a live lease, first for slots that have an open batch."""
    free = [each for each in slots if not each.is_live]
    if not free:
        raise BatchLeased(
            f"each of the {len(slots)} slots of {consumption} has a run in progress",
            "Materialize the asset again after one of these runs has ended.",
        )
    for each in sorted(free, key=lambda each: each.batch_id is None):
        # Another run may have claimed it in the meantime.
        with suppress(BatchLeased):
            if batch := claim(Holder.of(each)):
                return batch
    return None
