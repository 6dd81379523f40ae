"""`@pgque_replay_asset`: events of a retained range of ticks once more, into an asset of their own.

What was consumed is not touched: a consumer that lives as long as the replay is given the events
again, in batches with ids of their own, and their output is kept apart from that of the first time.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import dagster as dg
from pydantic import Field

from ..client import Batch, Client, InvalidArgument
from ..client.calls.plans import tick_range_plan
from ..client.calls.ticks import claim_ticks, next_tick, register_at
from ..keys import QUEUE, REPLAY, TABLE, queue_key
from ..resource import PgqueResource
from ..spark import SparkBatch
from .compute_function import Body, is_annotated_none, step_of
from .consumption import Consumption
from .outputs import AssetRecord, StepResult
from .step import Step, executors_address

# PostgreSQL cuts longer names off, and what is cut off may be all that tells two tables apart.
_LONGEST_NAME = 63

# What the name of a replay's consumer begins with; a part of its run's id follows.
REPLAY_CONSUMER = "replay-"


class ReplayRange(dg.Config):
    """Which events to replay. Their batches' materializations name the ticks."""

    from_tick: int = Field(
        description="The tick after which to begin: pgque/prev_tick_id of the first batch wanted."
    )
    to_tick: int = Field(description="The last tick: pgque/tick_id of the last batch wanted.")
    max_events: int = Field(
        default=1_000_000, ge=1, description="How many events a batch of the replay has, about."
    )


def pgque_replay_asset(
    *,
    queue: str,
    of: dg.AssetsDefinition | None = None,
    lease_ttl: timedelta = timedelta(minutes=1),
    slices: int = 4,
    timeout: timedelta | None = None,
    name: str | None = None,
    key_prefix: Sequence[str] | str | None = None,
    description: str | None = None,
    kinds: set[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    check_specs: Sequence[dg.AssetCheckSpec] = (),
    io_manager_key: str | None = None,
    **asset_options: Any,
) -> Callable[[Body], dg.AssetsDefinition]:
    """Makes an asset of a `@pgque_asset`'s function that computes past events once more.

    Each of its runs is one replay: it asks in its config for a range of ticks, and takes the events
    in batches, each stored, recorded and acked before the next. It is materialized by hand only.

    It has to have an IO manager: a function that stores its results itself would store them beside
    those of the first time. One that says `-> None` is refused; one that returns None, or a
    MaterializeResult without a value, fails.

    Args:
        queue: the queue's name.
        of: the asset that is replayed. Where its metadata `dagster/table_name` is sales.revenue,
            that of the replay is sales.revenue_replay, unless `metadata` says another.
        lease_ttl: as for `pgque_asset`.
        slices: as for `pgque_asset`.
        timeout: as for `pgque_asset`.
        name: the asset's name; the function's with `_replay` behind it, if left out.
        key_prefix: put before the name in the asset's key.
        description: of the asset; the function's docstring, if left out.
        kinds: shown with the asset; pyspark, if left out.
        metadata: of the asset.
        check_specs: checks whose results the function yields or returns.
        io_manager_key: the resource to store with.
        asset_options: anything else that `@dg.asset` takes.

    Returns:
        The decorator. The asset needs the resources `pgque` and `pyspark`.

    Raises:
        DagsterInvalidDefinitionError: if the function has no parameter `batch` or one `config`,
            says that it returns nothing, or an option is out of range.

    Example:
        .. code-block:: python

            def revenue(batch: SparkBatch) -> DataFrame:
                return batch.payload("total double not null").groupBy().sum("total")

            first = pgque_asset(queue="orders")(revenue)
            assets = [first, pgque_replay_asset(queue="orders", of=first)(revenue)]
    """
    own_metadata = {**_table_beside(of), **(metadata or {})}

    def decorate(body: Body) -> dg.AssetsDefinition:
        if is_annotated_none(body):
            raise dg.DagsterInvalidDefinitionError(
                f"{body.__name__} says that it returns nothing (-> None): a replay stores what the "
                "function returns, apart from what it stored itself the first time"
            )
        consumption = Consumption(
            queue,
            consumer="replay",
            lease_ttl=lease_ttl,
            slices=slices,
            max_batches=1,
            max_seconds=None,
            timeout=timeout,
            wants_values=True,
        )

        def work(
            context: dg.AssetExecutionContext,
            pgque: PgqueResource,
            pyspark: Any,
            call: Callable[[SparkBatch], Any],
            config: ReplayRange,
        ) -> Iterator[StepResult | AssetRecord]:
            with pgque.client() as client:
                consumer = _begin_or_go_on(context, client, queue, config)
                mine = replace(consumption, consumer=consumer)
                batches = _batches(context, client, mine, config)
                address = executors_address(pgque, client.url)
                yield from Step(context, client, address, mine, pyspark, call).run(batches)

        asset: dg.AssetsDefinition = dg.asset(
            name=name or f"{body.__name__}_replay",
            key_prefix=key_prefix,
            deps=[queue_key(queue)],
            description=description or inspect.getdoc(body),
            kinds={"pyspark"} if kinds is None else kinds,
            metadata={**own_metadata, QUEUE: queue, REPLAY: True},
            check_specs=list(check_specs),
            io_manager_key=io_manager_key,
            output_required=False,
            **asset_options,
        )(step_of(body, work, {io_manager_key or "io_manager"}, ReplayRange))
        return asset

    return decorate


def _table_beside(asset: dg.AssetsDefinition | None) -> dict[str, str]:
    """Returns the metadata that name the table of an asset's replay, if the asset's names one.

    Raises:
        DagsterInvalidDefinitionError: if PostgreSQL would cut the table's name off.
    """
    named = next((spec.metadata.get(TABLE) for spec in asset.specs), None) if asset else None
    if not named:
        return {}
    table = str(getattr(named, "value", named))
    beside = f'{table[:-1]}_replay"' if table.endswith('"') else f"{table}_replay"
    if len(beside.rpartition(".")[2].strip('"').encode()) > _LONGEST_NAME:
        raise dg.DagsterInvalidDefinitionError(
            f"the table {beside} of the replay has a name of more than {_LONGEST_NAME} bytes: give "
            f'the replay a shorter one, metadata={{"{TABLE}": …}}'
        )
    return {TABLE: beside}


def _begin_or_go_on(
    context: dg.AssetExecutionContext, client: Client, queue: str, wanted: ReplayRange
) -> str:
    """Returns the replay's consumer: that of a failed run which this one re-executes, or a new one.

    Raises:
        InvalidArgument: if the range is empty, or its ticks are not retained.
    """
    run = context.run
    runs = (run.run_id, run.parent_run_id, run.root_run_id)
    names = [f"{REPLAY_CONSUMER}{run_id[:8]}" for run_id in runs if run_id]
    registered = {consumer.name for consumer in client.consumers(queue)}
    for name in names:
        if name in registered:
            context.log.info(f"Going on where {queue}/{name} stands.")
            return name
    if wanted.from_tick >= wanted.to_tick:
        raise InvalidArgument(
            f"no events lie between tick {wanted.from_tick} and tick {wanted.to_tick}",
            "Give as from_tick the tick before the first event wanted, and a later to_tick.",
        )
    plan = client.run(tick_range_plan(queue, wanted.from_tick, wanted.to_tick, 1))
    client.run(register_at(queue, names[0], wanted.from_tick))
    context.log.info(
        f"Replaying {plan.events} events of queue {queue} as consumer {names[0]}. Should the run "
        f"fail, re-execute it to go on, or give it up by `pgque unregister {queue} {names[0]}`."
    )
    return names[0]


def _batches(
    context: dg.AssetExecutionContext,
    client: Client,
    consumption: Consumption,
    wanted: ReplayRange,
) -> Iterator[Batch]:
    """Claims the range in batches, and ends the consumer when all are acked.

    Yields:
        Batches with events. Each has to be acked before the next is asked for.
    """
    queue, consumer = consumption.queue, consumption.consumer
    owner, ttl = f"dagster run {context.run.run_id}", consumption.lease_ttl
    while True:
        (state,) = (each for each in client.consumers(queue) if each.name == consumer)
        position = state.last_tick_id
        assert position is not None
        ticks: tuple[int, ...] = ()
        # The batch of an attempt that failed stays as it is, whatever the config says now.
        if state.batch_id is None:
            if position >= wanted.to_tick:
                break
            end = client.run(next_tick(queue, consumer, position, wanted.max_events))
            ticks = (position, min(end or wanted.to_tick, wanted.to_tick))
        claim = client.run(claim_ticks(queue, consumer, owner, ttl, *ticks))
        batch = Batch(client, queue, consumer, claim.lease, ttl)
        if batch.read_plan(1).events:
            yield batch
        else:
            batch.ack()
    client.unregister_consumer(queue, consumer)
    context.log.info(f"Replayed up to tick {position}; consumer {consumer} is gone.")
