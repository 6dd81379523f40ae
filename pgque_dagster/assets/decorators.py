"""`@pgque_asset` and `@pgque_multi_asset`: assets computed from batches or windows of a queue.

They are thin layers on Dagster's own decorators; `step.py` describes what happens in a run.
"""

import copy
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import dagster as dg

from ..client import Position
from ..project.database import DEFAULT, Database
from ..project.keys import CONSUMER
from .claims import Claims, claim_batches
from .compute_function import make_step
from .consumption import ComputeFunction, Consumption
from .step import consume
from .windows import open_windows

_IO_MANAGER = "io_manager"
_LEASE_TTL = timedelta(minutes=1)
# Dagster warns about a parameter that it passes itself when it loads assets with checks, like ours.
warnings.filterwarnings(
    "ignore",
    "Parameter `execution_type` of function `AssetsDefinition",
    dg.BetaWarning,
    r"dagster\._core\.definitions\.repository_definition\.",
)
_SLOTS = "For several parallel runs that keep the events of a key in order, use partitions"


def pgque_asset(
    *,
    queue: str,
    database: str = DEFAULT,
    databases: Sequence[str] = (),
    consumer: str | None = None,
    start_at: Position | None = None,
    partitions: int | None = None,
    partitions_def: dg.TimeWindowPartitionsDefinition | None = None,
    leave_out_failed: bool = False,
    lease_ttl: timedelta = _LEASE_TTL,
    slices: int = 4,
    batch_safe: bool = False,
    name: str | None = None,
    check_specs: Sequence[dg.AssetCheckSpec] = (),
    io_manager_key: str | None = None,
    **asset_options: Any,
) -> Callable[[ComputeFunction], dg.AssetsDefinition]:
    """Defines an asset computed by a function that takes a `SparkBatch` named `batch`.

    The function may also take `context`, resources and upstream assets, as with `@dg.asset`. It
    returns or yields a value for the IO manager, an Output, or a MaterializeResult if it stored the
    result itself. If a blocking check among `check_specs` fails, the batch is not acked. If there
    is no batch, or another run has its lease, the asset is skipped.

    If the function returns None or yields nothing, the run fails and the batch is released. To
    store results itself and return nothing, the function must be annotated with `-> None`.

    With `partitions_def`, each partition is a time window over the events that the queue retains.
    No consumer is registered and nothing is acked, so windows can be computed at any time, in any
    order, and again. A window counts as a batch whose id is its start in UTC, as YYYYMMDDHHMM. An
    event belongs to the window of the tick with which it became visible: the tick of its commit, or
    the next one if no tick came in between. A run fails if its window is not over or not all of the
    window's ticks are retained; with `databases`, this holds for each of them.

    Args:
        queue: the queue's name.
        database: the key of the PgqueResource whose database has the queue.
        databases: the keys of several, if the queue is sharded over their databases. A run has at
            most one batch of each, or the window of each. Its DataFrames begin with the column
            `shard`, the name of the database, and one commit stores them all.
        consumer: the consumer's name; by default the asset's name. Each asset needs its own.
        start_at: where the consumer starts when it is registered: `earliest`, the oldest tick that
            is retained; `latest`, the last tick; the number of a tick; or a time with a zone, from
            which it gets all committed events. By default at the last tick, or at the first one of
            a queue younger than an hour. A registered consumer is not moved.
        partitions: divides the events by their key (ev_extra1) among this number of slots, from 1
            to 256. The events of a key are computed in order, and only one run works on a slot.
            By default all events are in one sequence of batches.
        partitions_def: time windows, such as HourlyPartitionsDefinition, instead of batches.
        leave_out_failed: allows the function of a window to leave events out: malformed events, and
            events that it passes to `nack` or `dead_letter`. The metadata `pgque/left_out` counts
            them. Otherwise such an event fails the run, because a window has no dead letters.
        lease_ttl: how long the lease of a run that died lasts. Until then no other run can claim
            the batch. A live run renews its lease.
        slices: the maximum number of partitions in which a large batch is read.
        batch_safe: declares that the IO manager keeps outputs of batches apart, and that storing
            one again changes nothing. Unless the IO manager declares it itself, with an attribute
            `batch_safe`, it may not store a value: most IO managers replace the output of one run
            with the output of the next.
        name: the asset's name; by default the function's name.
        check_specs: checks whose results the function yields or returns.
        io_manager_key: the key of the IO manager.
        asset_options: any other option of `@dg.asset`, such as `key_prefix`, `group_name`,
            `owners`, `tags`, `metadata`, `deps` (besides the queue) and `pool`. By default the
            description is the function's docstring, and the kind is pyspark.

    Returns:
        The decorator. The asset needs the resources of its database (PgqueResource) and `pyspark`
        (from dagster-pyspark, or any object with a `spark_session`).

    Raises:
        DagsterInvalidDefinitionError: if the function has no parameter `batch`, is `async`, or
            returns nothing although an IO manager is named; if an option is out of range, or
            has no effect in combination with the others.

    Example:
        .. code-block:: python

            @pgque_asset(queue="orders")
            def revenue(batch: SparkBatch):
                return batch.payload("total double not null").groupBy().sum("total")
    """

    def decorate(compute_fn: ComputeFunction) -> dg.AssetsDefinition:
        if isinstance(databases, str):
            raise dg.DagsterInvalidDefinitionError(
                f"{compute_fn.__name__}: databases is a string: write databases=['{databases}']"
            )
        of_windows = partitions_def is not None
        of_consumers = {
            "consumer": consumer,
            "start_at": start_at,
            "partitions": partitions,
            "lease_ttl": None if lease_ttl == _LEASE_TTL else lease_ttl,
            "batch_safe": batch_safe or None,
        }
        if of_windows:
            _check_windows(compute_fn, partitions_def, of_consumers, asset_options)
        elif leave_out_failed:
            raise dg.DagsterInvalidDefinitionError(
                f"{compute_fn.__name__}: remove leave_out_failed, or pass partitions_def: "
                "failed events of a batch become dead letters"
            )
        consumption = Consumption(
            compute_fn,
            queue,
            consumer or name or compute_fn.__name__,
            lease_ttl,
            slices,
            # The IO manager gets the window's partition; it must keep these apart for any asset.
            batch_safe=batch_safe or of_windows,
            start_at=start_at,
            partitions=partitions,
            database=Database(database),
            shards=tuple(map(Database, databases)),
        )
        if databases and not of_windows:
            _check_final(consumption, check_specs)
        if consumption.returns_nothing and io_manager_key is not None:
            _refuse_manager(compute_fn, io_manager_key)
        options = _with_defaults(asset_options, consumption)
        required = set(options.pop("required_resource_keys", None) or ())
        if io_manager_key is None and consumption.stores_itself:
            # The function stores its results itself, so the asset needs no IO manager.
            options.setdefault("dagster_type", dg.Nothing)
        else:
            required.add(io_manager_key or _IO_MANAGER)
            if consumption.returns_scalar:
                # As `@dg.asset` does, so that a DataFrame is not accepted as a string.
                options.setdefault("dagster_type", consumption.returns_scalar)
        claim: Callable[..., Claims] = claim_batches
        if partitions_def is not None:
            # Sensors and checks read from this who owns a consumer.
            del options["metadata"][CONSUMER]
            claim = partial(open_windows, partitions_def, leave_out_failed)
        work = partial(consume, consumption, claim)
        asset: dg.AssetsDefinition = dg.asset(
            name=name,
            partitions_def=partitions_def,
            check_specs=list(check_specs),
            io_manager_key=io_manager_key,
            # A run without a batch has no output.
            output_required=of_windows,
            **options,
        )(make_step(compute_fn, consumption.databases, work, required))
        if not of_windows:
            _refuse_partitions(asset)
        return asset

    return decorate


def pgque_multi_asset(
    *,
    queue: str,
    database: str = DEFAULT,
    consumer: str | None = None,
    specs: Sequence[dg.AssetSpec] | None = None,
    outs: Mapping[str, dg.AssetOut] | None = None,
    start_at: Position | None = None,
    partitions: int | None = None,
    lease_ttl: timedelta = _LEASE_TTL,
    slices: int = 4,
    batch_safe: bool = False,
    name: str | None = None,
    deps: Sequence[Any] = (),
    description: str | None = None,
    check_specs: Sequence[dg.AssetCheckSpec] = (),
    **asset_options: Any,
) -> Callable[[ComputeFunction], dg.AssetsDefinition]:
    """Defines several assets computed by one function that takes a `SparkBatch` named `batch`.

    The assets share a consumer: a batch is acked when its output for every asset is stored.
    Therefore they are always materialized together.

    Args:
        queue: the queue's name.
        database: as for `pgque_asset`.
        consumer: the consumer's name; by default the step's name.
        specs: the assets, if the function stores them itself. It returns or yields a
            MaterializeResult for each, or nothing if it is annotated with `-> None`.
        outs: the assets, if IO managers store them. The function returns a tuple of values, or
            yields an Output for each.
        start_at: as for `pgque_asset`.
        partitions: as for `pgque_asset`.
        lease_ttl: as for `pgque_asset`.
        slices: as for `pgque_asset`.
        batch_safe: as for `pgque_asset`; for `outs` only.
        name: the step's name; by default the function's name.
        deps: upstream assets of all of them, besides the queue.
        description: the step's description; by default the function's docstring.
        check_specs: checks whose results the function yields or returns.
        asset_options: any other option of `@dg.multi_asset`, except `can_subset`.

    Returns:
        The decorator. The assets need the resources of their database and `pyspark`.

    Raises:
        DagsterInvalidDefinitionError: if not exactly one of specs and outs is given, and as for
            `pgque_asset`.
    """
    if bool(specs) == bool(outs):
        raise dg.DagsterInvalidDefinitionError("pass either specs or outs")
    if asset_options.get("can_subset"):
        raise dg.DagsterInvalidDefinitionError(
            "leave out can_subset: a batch is acked as a whole, so its assets are always "
            "materialized together"
        )

    def decorate(compute_fn: ComputeFunction) -> dg.AssetsDefinition:
        consumption = Consumption(
            compute_fn,
            queue,
            consumer or name or compute_fn.__name__,
            lease_ttl,
            slices,
            batch_safe=batch_safe,
            start_at=start_at,
            partitions=partitions,
            database=Database(database),
        )
        if consumption.returns_nothing and outs:
            _refuse_manager(compute_fn, "its outs")
        options = dict(asset_options)
        required = set(options.pop("required_resource_keys", None) or ())
        upstream = [consumption.database.queue_key(queue), *deps]
        work = partial(consume, consumption, claim_batches)
        if outs:
            options |= {"outs": {key: _optional(out) for key, out in outs.items()}}
            options |= {"deps": upstream}
            required |= {out.io_manager_key or _IO_MANAGER for out in outs.values()}
        else:
            options["specs"] = [
                spec.replace_attributes(skippable=True, deps=[*spec.deps, *upstream])
                for spec in specs or ()
            ]
        assets: dg.AssetsDefinition = dg.multi_asset(
            name=name,
            description=description or inspect.getdoc(compute_fn),
            check_specs=list(check_specs),
            **options,
        )(make_step(compute_fn, consumption.databases, work, required))
        _refuse_partitions(assets)
        return assets.map_asset_specs(
            lambda spec: spec.merge_attributes(
                metadata=consumption.metadata(), kinds=set() if spec.kinds else {"pyspark"}
            )
        )

    return decorate


def _with_defaults(given: Mapping[str, Any], consumption: Consumption) -> dict[str, Any]:
    """Returns options of `@dg.asset` with our defaults, the queue upstream, and our metadata."""
    queues = [each.queue_key(consumption.queue) for each in consumption.databases]
    kinds = given.get("kinds")
    return {
        **given,
        "deps": [*queues, *(given.get("deps") or ())],
        "description": given.get("description") or inspect.getdoc(consumption.compute_fn),
        "kinds": {"pyspark"} if kinds is None else kinds,
        "metadata": {**(given.get("metadata") or {}), **consumption.metadata()},
    }


def _refuse_manager(compute_fn: ComputeFunction, manager: str) -> None:
    """Refuses a function that is declared to return nothing but has an IO manager."""
    raise dg.DagsterInvalidDefinitionError(
        f"{compute_fn.__name__} is declared to return nothing (-> None), but {manager} would store "
        "its result: leave one of them out"
    )


def _check_windows(
    compute_fn: ComputeFunction,
    partitions_def: Any,
    of_consumers: Mapping[str, Any],
    asset_options: Mapping[str, Any],
) -> None:
    """Refuses partitions that are not time windows, and options that windows do not have."""
    if not isinstance(partitions_def, dg.TimeWindowPartitionsDefinition):
        raise dg.DagsterInvalidDefinitionError(
            f"{compute_fn.__name__}: partitions_def must be a TimeWindowPartitionsDefinition, such "
            f"as dg.HourlyPartitionsDefinition. {_SLOTS}"
        )
    if given := [name for name, value in of_consumers.items() if value is not None]:
        raise dg.DagsterInvalidDefinitionError(
            f"{compute_fn.__name__}: leave out {', '.join(given)}, or partitions_def: a window has "
            "no consumer"
        )
    policy = asset_options.get("backfill_policy")
    if policy is not None and policy.max_partitions_per_run != 1:
        raise dg.DagsterInvalidDefinitionError(
            f"{compute_fn.__name__}: a run stores one window: leave out backfill_policy, or pass "
            "BackfillPolicy.multi_run()"
        )


def _check_final(consumption: Consumption, check_specs: Sequence[dg.AssetCheckSpec]) -> None:
    """Refuses options that do not work with several databases, whose batches share a commit."""
    if consumption.stores_itself:
        problem = "an IO manager stores the result, so return a DataFrame"
    elif any(spec.blocking for spec in check_specs):
        problem = (
            "what is stored is final, so a check cannot block its ack: raise in the function "
            "instead, or leave out blocking"
        )
    else:
        return
    raise dg.DagsterInvalidDefinitionError(f"consumer {consumption}: with databases, {problem}")


def _refuse_partitions(assets: dg.AssetsDefinition) -> None:
    """Refuses partitions and backfill policies for batches, which Dagster accepts."""
    if assets.partitions_def is not None or assets.backfill_policy is not None:
        raise dg.DagsterInvalidDefinitionError(
            f"{assets.op.name}: leave out partitions_def and backfill_policy: a run gets the next "
            "batch of its consumer, regardless of its partition. For windows of time, with "
            f"backfills, use @pgque_asset with partitions_def. {_SLOTS}"
        )


def _optional(out: dg.AssetOut) -> dg.AssetOut:
    """Makes the output optional, because a run without a batch skips it."""
    optional = copy.copy(out)
    optional.is_required = False
    return optional
