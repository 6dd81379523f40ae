"""`@pgque_replay_asset`: computes a retained range of ticks again, into a separate asset.

A replay reads the events through a temporary consumer, as one batch with an id of its own. Its
output is stored apart from the original output, which does not change.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from ..client import Batch, Client, InvalidArgument
from ..client.calls.plans import tick_range_plan
from ..client.calls.states import has_events
from ..client.calls.ticks import Tick, claim_ticks, register_at, window_ticks
from ..project.keys import QUEUE, REPLAY, TABLE, queue_key
from ..project.resource import PgqueResource
from .claims import step_owner
from .compute_function import ComputeFunction, is_annotated_none, make_step, returns_frames
from .consumption import Consumption
from .outputs import AssetRecord, StepResult
from .refused_options import OF_REPLAYS, refuse_options, refusing_unknown
from .step import Step, executors_address

if TYPE_CHECKING:
    from ..spark import SparkBatch

# PostgreSQL truncates longer names, so the names of two tables could become equal.
_MAX_NAME_BYTES = 63

# Prefix of a replay consumer's name. The first 8 characters of the run id follow.
REPLAY_CONSUMER = "replay-"


class ReplayRange(dg.Config):
    """Which events to replay: from tick to tick, or from time to time."""

    from_tick: int | None = Field(
        default=None,
        description="The tick after which to start: pgque/prev_tick_id of the first batch to "
        "replay.",
    )
    to_tick: int | None = Field(
        default=None, description="The last tick: pgque/tick_id of the last batch to replay."
    )
    from_time: str | None = Field(
        default=None,
        description="Instead of ticks: the time from which on to replay, with a zone, such as "
        "2030-12-24T18:00+00:00.",
    )
    to_time: str | None = Field(default=None, description="The time before which to end.")


def pgque_replay_asset(
    *,
    queue: str,
    of: dg.AssetsDefinition | None = None,
    lease_ttl: timedelta = timedelta(minutes=1),
    slices: int = 4,
    timeout: timedelta | None = None,
    batch_safe: bool = False,
    name: str | None = None,
    key_prefix: Sequence[str] | str | None = None,
    description: str | None = None,
    kinds: set[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    check_specs: Sequence[dg.AssetCheckSpec] = (),
    io_manager_key: str | None = None,
    **asset_options: Any,
) -> Callable[[ComputeFunction], dg.AssetsDefinition]:
    """Defines an asset that computes past events again, with the function of a `@pgque_asset`.

    Each of its runs is one replay. The run's config names a range of ticks, or of times, whose
    events are one batch. No sensor starts such runs; materialize the asset by hand.

    The asset needs an IO manager, because a function that stores its results itself would add them
    to those of the first time. A function annotated with `-> None` is refused. A function that
    returns None, or a MaterializeResult without a value, fails the run.

    Args:
        queue: the queue's name.
        of: the asset to replay. If its metadata `dagster/table_name` is sales.revenue, that of the
            replay is sales.revenue_replay, unless `metadata` sets another.
        lease_ttl: as for `pgque_asset`.
        slices: as for `pgque_asset`.
        timeout: as for `pgque_asset`.
        batch_safe: as for `pgque_asset`.
        name: the asset's name; by default the function's name with the suffix `_replay`.
        key_prefix: prefix of the asset's key.
        description: of the asset; by default the function's docstring.
        kinds: shown with the asset; by default pyspark.
        metadata: of the asset.
        check_specs: checks whose results the function yields or returns.
        io_manager_key: the key of the IO manager.
        asset_options: any other option of `@dg.asset`.

    Returns:
        The decorator. The asset needs the resources `pgque` and `pyspark`.

    Raises:
        DagsterInvalidDefinitionError: if the function has no parameter `batch`, has a parameter
            `config`, or is annotated with `-> None`, or if an option is out of range.

    Example:
        .. code-block:: python

            def revenue(batch: SparkBatch) -> DataFrame:
                return batch.payload("total double not null").groupBy().sum("total")

            first = pgque_asset(queue="orders")(revenue)
            assets = [first, pgque_replay_asset(queue="orders", of=first)(revenue)]
    """
    own_metadata = {**_replay_table_metadata(of), **(metadata or {})}

    def decorate(compute_fn: ComputeFunction) -> dg.AssetsDefinition:
        refuse_options(compute_fn.__name__, asset_options, OF_REPLAYS)
        if is_annotated_none(compute_fn):
            raise dg.DagsterInvalidDefinitionError(
                f"{compute_fn.__name__} is declared to return nothing (-> None), so it cannot be "
                "replayed: a replay stores what the function returns, by an IO manager"
            )
        consumption = Consumption(
            queue,
            consumer="replay",
            lease_ttl=lease_ttl,
            slices=slices,
            timeout=timeout,
            wants_values=True,
            batch_safe=batch_safe,
            returns_frames=returns_frames(compute_fn),
        )

        def work(
            context: dg.AssetExecutionContext,
            pgque: PgqueResource,
            pyspark: Any,
            call: "Callable[[SparkBatch], Any]",
            config: ReplayRange,
        ) -> Iterator[StepResult | AssetRecord]:
            with pgque.client() as client:
                consumer = _start_or_resume(context, client, queue, config)
                mine = replace(consumption, consumer=consumer)
                batch = _claim(context, client, mine, config)
                address = executors_address(pgque, client.url)
                step = Step(context, client, address, mine, pyspark, call)
                acked = yield from step.run(batch)
                if acked or batch is None:
                    client.unregister_consumer(queue, consumer)

        asset: dg.AssetsDefinition = refusing_unknown(pgque_replay_asset, dg.asset, OF_REPLAYS)(
            name=name or f"{compute_fn.__name__}_replay",
            key_prefix=key_prefix,
            deps=[queue_key(queue)],
            description=description or inspect.getdoc(compute_fn),
            kinds={"pyspark"} if kinds is None else kinds,
            metadata={**own_metadata, QUEUE: queue, REPLAY: True},
            check_specs=list(check_specs),
            io_manager_key=io_manager_key,
            output_required=False,
            **asset_options,
        )(make_step(compute_fn, work, {io_manager_key or "io_manager"}, ReplayRange))
        return asset

    return decorate


def _replay_table_metadata(asset: dg.AssetsDefinition | None) -> dict[str, str]:
    """Returns metadata that name the replay's table, if the asset's metadata name a table.

    Raises:
        DagsterInvalidDefinitionError: if PostgreSQL would truncate the table's name.
    """
    named = next((spec.metadata.get(TABLE) for spec in asset.specs), None) if asset else None
    if not named:
        return {}
    table = str(getattr(named, "value", named))
    replay_table = f'{table[:-1]}_replay"' if table.endswith('"') else f"{table}_replay"
    if len(replay_table.rpartition(".")[2].strip('"').encode()) > _MAX_NAME_BYTES:
        raise dg.DagsterInvalidDefinitionError(
            f"the replay's table name {replay_table} has more than {_MAX_NAME_BYTES} bytes: pass a "
            f'shorter one to the replay, metadata={{"{TABLE}": …}}'
        )
    return {TABLE: replay_table}


def _start_or_resume(
    context: dg.AssetExecutionContext, client: Client, queue: str, wanted: ReplayRange
) -> str:
    """Returns the consumer of the failed run that this run re-executes, or registers a new one.

    Raises:
        InvalidArgument: if the range is empty, or its ticks are no longer retained.
    """
    run = context.run
    runs = (run.run_id, run.parent_run_id, run.root_run_id)
    names = [f"{REPLAY_CONSUMER}{run_id[:8]}" for run_id in runs if run_id]
    registered = {consumer.name for consumer in client.consumers(queue)}
    for name in names:
        if name in registered:
            context.log.info(f"Resuming the replay from the position of {queue}/{name}.")
            return name
    from_tick, to_tick = _ticks(client, queue, wanted)
    if from_tick >= to_tick:
        raise InvalidArgument(
            f"no events lie between tick {from_tick} and tick {to_tick}",
            "Set from_tick to the tick before the first event to replay, and to_tick to a later "
            "tick.",
        )
    plan = client.run(tick_range_plan(queue, from_tick, to_tick, 1))
    client.run(register_at(queue, names[0], from_tick))
    context.log.info(
        f"Replaying {plan.events} events of queue {queue} as consumer {names[0]}. If the run "
        f"fails, re-execute it to resume the replay, or run `pgque unregister {queue} {names[0]}` "
        "to abandon it."
    )
    return names[0]


def _ticks(client: Client, queue: str, wanted: ReplayRange) -> tuple[int, int]:
    """Returns the ticks of a range.

    Raises:
        InvalidArgument: if the range is neither of ticks nor of times, or its window is not over
            or no longer retained.
    """
    ticks = (wanted.from_tick, wanted.to_tick)
    times = (wanted.from_time, wanted.to_time)
    from_tick, to_tick = ticks
    if from_tick is not None and to_tick is not None and times == (None, None):
        return from_tick, to_tick
    if None in times or ticks != (None, None):
        raise InvalidArgument(
            "the replay has no range",
            "Set either from_tick and to_tick, or from_time and to_time.",
        )
    start, end = (_time(text or "") for text in times)
    window = client.run(window_ticks(queue, start, end))
    return window.prev_tick_id, window.tick_id


def _last_tick(client: Client, queue: str, wanted: ReplayRange) -> int:
    """Returns the last tick of a range. The first one may be gone after the replay's ack."""
    if wanted.to_time is None:
        return _ticks(client, queue, wanted)[1]
    end = _time(wanted.to_time)
    return client.run(window_ticks(queue, end - timedelta(microseconds=1), end)).tick_id


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise InvalidArgument(
            f"{text!r} is no time with a zone", "Write it as 2030-12-24T18:00+00:00."
        )
    return found


def _claim(
    context: dg.AssetExecutionContext, client: Client, consumption: Consumption, wanted: ReplayRange
) -> Batch | None:
    """Claims the range as one batch. Returns None if it has no event, or was acked before."""
    queue, consumer = consumption.queue, consumption.consumer
    (state,) = (each for each in client.consumers(queue) if each.name == consumer)
    ticks: tuple[Tick | None, Tick | None] = (None, None)
    # The open batch of a failed attempt keeps its ticks.
    if state.batch_id is None:
        position, to_tick = state.last_tick_id, _last_tick(client, queue, wanted)
        assert position is not None
        if position >= to_tick:
            return None
        ticks = (Tick(position, None), Tick(to_tick, None))
    owner, ttl = step_owner(context), consumption.lease_ttl
    claim = client.run(claim_ticks(queue, consumer, owner, ttl, *ticks))
    batch = Batch(client, queue, consumer, claim.lease, ttl)
    if client.run(has_events(batch.batch_id)):
        return batch
    batch.ack()
    return None
