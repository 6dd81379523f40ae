"""`@pgque_asset` and `@pgque_multi_asset`: assets computed from the batches of a queue.

They are thin layers on Dagster's own decorators; what happens in a run is in `consuming`.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import dagster as dg

from ..keys import CONSUMER, QUEUE, dead_letters_key, queue_key
from ..resource import PgqueResource
from ..spark import SparkBatch
from .compute_function import Body, is_annotated_none, is_annotated_result, step_of
from .consumption import Consumption
from .outputs import AssetRecord, StepResult
from .step import consume

_IO_MANAGER = "io_manager"


def pgque_asset(
    *,
    queue: str,
    consumer: str | None = None,
    lease_ttl: timedelta = timedelta(minutes=1),
    slices: int = 4,
    max_batches: int = 1,
    max_seconds: float | None = None,
    timeout: timedelta | None = None,
    returns_nothing: bool = False,
    name: str | None = None,
    key_prefix: Sequence[str] | str | None = None,
    deps: Sequence[Any] = (),
    description: str | None = None,
    kinds: set[str] | None = None,
    group_name: str | None = None,
    owners: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    code_version: str | None = None,
    automation_condition: dg.AutomationCondition[dg.AssetKey] | None = None,
    freshness_policy: dg.FreshnessPolicy | None = None,
    check_specs: Sequence[dg.AssetCheckSpec] = (),
    io_manager_key: str | None = None,
    op_tags: Mapping[str, Any] | None = None,
    pool: str | None = None,
    **asset_options: Any,
) -> Callable[[Body], dg.AssetsDefinition]:
    """Makes an asset of a function that takes a `SparkBatch` named `batch`.

    The function may also take `context`, resources and upstream assets, as with `@dg.asset`. It
    returns a value for the IO manager, an Output, or a MaterializeResult for what it stored itself;
    or it yields one of them. A blocking check among `check_specs` that fails keeps the batch from
    being acked. Where there is no batch, or somebody else works on it, the asset is skipped.

    A function that returns None, or yields nothing, fails the run and keeps the batch, unless its
    annotation is `-> None`, or `returns_nothing` says that it stores its results itself.

    Args:
        queue: the queue's name.
        consumer: the consumer's name; the asset's, if left out. One asset a consumer.
        lease_ttl: how long the batch stays with a run that died, before another may take it over;
            a living run renews it.
        slices: how many partitions a large batch is read in, at the most.
        max_batches: how many batches one run takes, at the most, one after another. Each is stored,
            recorded and acked by itself; a blocking check or an error ends the run there. What the
            function says of the later ones it has to return: `context.add_output_metadata` is for
            the first.
        max_seconds: no further batch is begun when the run has worked this long.
        timeout: how long the work on one batch may take. After it, its Spark jobs are cancelled,
            the run fails and the batch is given back, whatever the function waits for. Storing
            that waits for something else than Spark is not ended.
        returns_nothing: whether the function stores its results itself, so that it may return None
            or yield nothing. The annotation `-> None` says the same.
        name: the asset's name; the function's, if left out.
        key_prefix: put before the name in the asset's key.
        deps: upstream assets besides the queue and its dead letters.
        description: of the asset; the function's docstring, if left out.
        kinds: shown with the asset; pyspark, if left out.
        group_name: the group to show the asset in.
        owners: of the asset.
        tags: of the asset.
        metadata: of the asset.
        code_version: of the function.
        automation_condition: of the asset.
        freshness_policy: of the asset.
        check_specs: checks whose results the function yields or returns.
        io_manager_key: the resource to store with.
        op_tags: of the step.
        pool: a pool that bounds how many of its steps run.
        asset_options: anything else that `@dg.asset` takes.

    Returns:
        The decorator. The asset needs the resources `pgque` (PgqueResource) and `pyspark`
        (of dagster-pyspark, or anything with a `spark_session`).

    Raises:
        DagsterInvalidDefinitionError: if the function has no parameter `batch`, is `async`, says
            that it returns nothing where an IO manager is named, or an option is out of range.

    Example:
        .. code-block:: python

            @pgque_asset(queue="orders")
            def revenue(batch: SparkBatch):
                return batch.payload("total double not null").groupBy().sum("total")
    """

    def decorate(body: Body) -> dg.AssetsDefinition:
        options = dict(asset_options)
        if "key" not in options:
            options |= {"name": name or body.__name__, "key_prefix": key_prefix}
        elif name is not None or key_prefix is not None:
            raise dg.DagsterInvalidDefinitionError("pass key, or name and key_prefix; not both")
        manager = io_manager_key
        if "io_manager_def" in options:
            if manager is not None:
                raise dg.DagsterInvalidDefinitionError(
                    "pass io_manager_def or io_manager_key, not both"
                )
            # Under a name of our own, by which later batches find it.
            manager = f"{body.__name__}_{_IO_MANAGER}"
            resources = options.get("resource_defs") or {}
            options["resource_defs"] = {**resources, manager: options.pop("io_manager_def")}
        consumption = Consumption(
            queue,
            consumer or name or body.__name__,
            lease_ttl,
            slices,
            max_batches,
            max_seconds,
            timeout,
            returns_nothing=returns_nothing or is_annotated_none(body),
        )
        if consumption.returns_nothing and manager is not None:
            _refuse_manager(body, manager)
        required = set(options.pop("required_resource_keys", None) or ())
        required |= set(options.get("resource_defs") or ())
        if manager is None and (consumption.returns_nothing or is_annotated_result(body)):
            # No IO manager is asked for, so none is needed.
            options.setdefault("dagster_type", dg.Nothing)
        elif max_batches > 1:
            required.add(manager or _IO_MANAGER)
        asset: dg.AssetsDefinition = dg.asset(
            deps=[queue_key(queue), dead_letters_key(queue), *deps],
            description=description or inspect.getdoc(body),
            kinds={"pyspark"} if kinds is None and "compute_kind" not in options else kinds,
            group_name=group_name,
            owners=owners,
            tags=tags,
            metadata={**(metadata or {}), **_marks(consumption)},
            code_version=code_version,
            automation_condition=automation_condition,
            freshness_policy=freshness_policy,
            check_specs=list(check_specs),
            io_manager_key=manager,
            op_tags=op_tags,
            pool=pool,
            output_required=False,
            **options,
        )(step_of(body, _work(consumption), required))
        return asset

    return decorate


def pgque_multi_asset(
    *,
    queue: str,
    consumer: str | None = None,
    specs: Sequence[dg.AssetSpec] | None = None,
    outs: Mapping[str, dg.AssetOut] | None = None,
    lease_ttl: timedelta = timedelta(minutes=1),
    slices: int = 4,
    max_batches: int = 1,
    max_seconds: float | None = None,
    timeout: timedelta | None = None,
    returns_nothing: bool = False,
    name: str | None = None,
    deps: Sequence[Any] = (),
    description: str | None = None,
    check_specs: Sequence[dg.AssetCheckSpec] = (),
    **asset_options: Any,
) -> Callable[[Body], dg.AssetsDefinition]:
    """Makes several assets of one function that takes a `SparkBatch` named `batch`.

    They share the consumer: a batch is acked when all that the function made of it is stored. So
    they are always materialized together.

    Args:
        queue: the queue's name.
        consumer: the consumer's name; that of the step, if left out.
        specs: the assets, where the function stores them itself; it returns or yields a
            MaterializeResult each, or None for all under `returns_nothing`.
        outs: the assets, where IO managers do; the function returns a tuple of values, or yields an
            Output each.
        lease_ttl: as for `pgque_asset`.
        slices: as for `pgque_asset`.
        max_batches: as for `pgque_asset`.
        max_seconds: as for `pgque_asset`.
        timeout: as for `pgque_asset`.
        returns_nothing: as for `pgque_asset`; for `specs` only.
        name: the step's name; the function's, if left out.
        deps: upstream assets of all of them, besides the queue and its dead letters.
        description: of the step; the function's docstring, if left out.
        check_specs: checks whose results the function yields or returns.
        asset_options: anything else that `@dg.multi_asset` takes, except `can_subset`.

    Returns:
        The decorator. The assets need the resources `pgque` and `pyspark`.

    Raises:
        DagsterInvalidDefinitionError: if not exactly one of specs and outs is given, or as for
            `pgque_asset`.
    """
    if bool(specs) == bool(outs):
        raise dg.DagsterInvalidDefinitionError("pass specs or outs, one of the two")
    if asset_options.get("can_subset"):
        raise dg.DagsterInvalidDefinitionError(
            "can_subset: a batch is acked as a whole, so its assets are materialized together"
        )

    def decorate(body: Body) -> dg.AssetsDefinition:
        consumption = Consumption(
            queue,
            consumer or name or body.__name__,
            lease_ttl,
            slices,
            max_batches,
            max_seconds,
            timeout,
            returns_nothing=returns_nothing or is_annotated_none(body),
        )
        if consumption.returns_nothing and outs:
            _refuse_manager(body, "its outs")
        options = dict(asset_options)
        required = set(options.pop("required_resource_keys", None) or ())
        upstream = [queue_key(queue), dead_letters_key(queue), *deps]
        if outs:
            options |= {"outs": {key: _optional(out) for key, out in outs.items()}}
            options |= {"deps": upstream}
            if max_batches > 1:
                required |= {out.io_manager_key or _IO_MANAGER for out in outs.values()}
        else:
            options["specs"] = [
                spec.replace_attributes(skippable=True, deps=[*spec.deps, *upstream])
                for spec in specs or ()
            ]
        assets: dg.AssetsDefinition = dg.multi_asset(
            name=name or body.__name__,
            description=description or inspect.getdoc(body),
            check_specs=list(check_specs),
            **options,
        )(step_of(body, _work(consumption), required))
        return assets.map_asset_specs(
            lambda spec: spec.merge_attributes(
                metadata=_marks(consumption), kinds=set() if spec.kinds else {"pyspark"}
            )
        )

    return decorate


def _refuse_manager(body: Body, manager: str) -> NoReturn:
    """Refuses a function that returns nothing where something is to be stored."""
    raise dg.DagsterInvalidDefinitionError(
        f"{body.__name__} says that it returns nothing (-> None, or returns_nothing), but "
        f"{manager} says where to store what it returns: leave one of them out"
    )


def _optional(out: dg.AssetOut) -> dg.AssetOut:
    """The same output, which a run without a batch skips."""
    optional = copy.copy(out)
    optional.is_required = False
    return optional


def _marks(consumption: Consumption) -> dict[str, str]:
    """The metadata by which sensors know what an asset consumes."""
    return {QUEUE: consumption.queue, CONSUMER: consumption.consumer}


def _work(consumption: Consumption) -> Callable[..., Iterator[StepResult | AssetRecord]]:
    def work(
        context: dg.AssetExecutionContext,
        pgque: PgqueResource,
        pyspark: Any,
        call: Callable[[SparkBatch], Any],
    ) -> Iterator[StepResult | AssetRecord]:
        return consume(context, pgque, pyspark, consumption, call)

    return work
