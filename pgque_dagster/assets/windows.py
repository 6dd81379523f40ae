"""`@pgque_window_asset`: an asset over windows of time, of the ticks that a queue retains.

A window is a partition, or a run's config names it. Its events are read as a range of ticks. No
consumer is registered and nothing is acked, so a window can be computed at any time, in any order,
and again.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from ..project.keys import QUEUE, queue_key
from ..project.resource import PgqueResource
from .compute_function import (
    ComputeFunction,
    is_annotated_none,
    is_annotated_result,
    make_step,
    returns_frames,
)
from .consumption import Consumption
from .outputs import AssetRecord, StepResult
from .refused_options import OF_WINDOWS, refuse_options, refusing_unknown
from .step import executors_address
from .window_step import WindowStep

if TYPE_CHECKING:
    from ..spark import SparkBatch


class WindowConfig(dg.Config):
    """The window of a run, for an asset without partitions."""

    from_time: str = Field(
        description="The time at which the window begins, with a zone, such as "
        "2030-12-24T18:00+00:00."
    )
    to_time: str = Field(description="The time before which it ends.")


def pgque_window_asset(
    *,
    queue: str,
    partitions_def: dg.TimeWindowPartitionsDefinition | None = None,
    slices: int = 4,
    timeout: timedelta | None = None,
    leave_out_failed: bool = False,
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
    retry_policy: dg.RetryPolicy | None = None,
    io_manager_key: str | None = None,
    op_tags: Mapping[str, Any] | None = None,
    pool: str | None = None,
    **asset_options: Any,
) -> Callable[[ComputeFunction], dg.AssetsDefinition]:
    """Defines an asset that is computed from the events of a queue in windows of time.

    The function takes the events of one window as a `SparkBatch` named `batch`, and returns what a
    `@pgque_asset` returns. The IO manager stores it as the window's partition. A window counts as a
    batch whose id is its start in UTC, as YYYYMMDDHHMM.

    Without partitions, the run's config names the window, such as that of an incident whose events
    a corrected function computes again.

    An event belongs to the window of the tick with which it became visible: that of its commit, or
    the next one if no tick came in between. A window that is not over fails its run, and so does
    one whose ticks are not all retained.

    Args:
        queue: the queue's name.
        partitions_def: the windows, such as HourlyPartitionsDefinition; None to name the window of
            each run in its config, as `from_time` and `to_time`.
        slices: as for `pgque_asset`.
        timeout: how long the work on one window may take.
        leave_out_failed: allows the function to leave events out: malformed ones, and those that it
            passes to `nack` or `dead_letter`. They are counted in the metadata `pgque/left_out`.
            Without it, such an event fails the run, because a window has no dead letters.
        name: the asset's name; by default the function's name.
        key_prefix: prefix of the asset's key.
        deps: upstream assets besides the queue.
        description: of the asset; by default the function's docstring.
        kinds: shown with the asset; by default pyspark.
        group_name: the asset's group.
        owners: of the asset.
        tags: of the asset.
        metadata: of the asset.
        code_version: of the function.
        automation_condition: of the asset.
        freshness_policy: of the asset.
        retry_policy: for the step, for example because a window has no tick after it yet.
        io_manager_key: the key of the IO manager. It must keep partitions apart.
        op_tags: of the step.
        pool: a pool that limits how many steps run at the same time.
        asset_options: any other option of `@dg.asset` that can mean something for windows.

    Returns:
        The decorator. The asset needs the resources `pgque` and `pyspark`.

    Raises:
        DagsterInvalidDefinitionError: if `partitions_def` is not of time windows, if the function
            has a parameter `config` without it, or as for `pgque_asset`.

    Example:
        .. code-block:: python

            @pgque_window_asset(
                queue="orders",
                partitions_def=dg.DailyPartitionsDefinition(start_date="2026-11-01"),
            )
            def daily_revenue(batch: SparkBatch):
                return batch.payload("total double not null").groupBy().sum("total")
    """

    def decorate(compute_fn: ComputeFunction) -> dg.AssetsDefinition:
        options = dict(asset_options)
        refuse_options(compute_fn.__name__, options, OF_WINDOWS)
        if not isinstance(partitions_def, dg.TimeWindowPartitionsDefinition | None):
            raise dg.DagsterInvalidDefinitionError(
                f"{compute_fn.__name__}: partitions_def must be a TimeWindowPartitionsDefinition, "
                "such as dg.HourlyPartitionsDefinition"
            )
        policy = options.get("backfill_policy")
        if policy is not None and policy.max_partitions_per_run != 1:
            raise dg.DagsterInvalidDefinitionError(
                f"{compute_fn.__name__}: a run stores one window: leave out backfill_policy, or "
                "pass BackfillPolicy.multi_run()"
            )
        consumption = Consumption(
            queue,
            consumer="window",
            lease_ttl=timedelta(minutes=1),
            slices=slices,
            timeout=timeout,
            returns_nothing=is_annotated_none(compute_fn),
            # The IO manager gets a partition, which it must keep apart for any asset.
            batch_safe=partitions_def is not None,
            returns_frames=returns_frames(compute_fn),
        )
        required = set(options.pop("required_resource_keys", None) or ())
        if io_manager_key is None and (
            consumption.returns_nothing or is_annotated_result(compute_fn)
        ):
            # The function stores its results itself, so the asset needs no IO manager.
            options["dagster_type"] = dg.Nothing
        else:
            required.add(io_manager_key or "io_manager")

        def work(
            context: dg.AssetExecutionContext,
            pgque: PgqueResource,
            pyspark: Any,
            call: "Callable[[SparkBatch], Any]",
            config: WindowConfig | None = None,
        ) -> Iterator[StepResult | AssetRecord]:
            with pgque.client() as client:
                address = executors_address(pgque, client.url)
                step = WindowStep(
                    context, client, address, consumption, pyspark, call, leave_out_failed
                )
                if partitions_def is not None:
                    yield from step.run_partition(partitions_def)
                elif config is not None:
                    yield from step.run_window(config.from_time, config.to_time)

        asset: dg.AssetsDefinition = refusing_unknown(pgque_window_asset, dg.asset, OF_WINDOWS)(
            name=name or compute_fn.__name__,
            key_prefix=key_prefix,
            partitions_def=partitions_def,
            deps=[queue_key(queue), *deps],
            description=description or inspect.getdoc(compute_fn),
            kinds={"pyspark"} if kinds is None else kinds,
            group_name=group_name,
            owners=owners,
            tags=tags,
            metadata={**(metadata or {}), QUEUE: queue},
            code_version=code_version,
            automation_condition=automation_condition,
            freshness_policy=freshness_policy,
            retry_policy=retry_policy,
            io_manager_key=io_manager_key,
            op_tags=op_tags,
            pool=pool,
            **options,
        )(make_step(compute_fn, work, required, None if partitions_def else WindowConfig))
        return asset

    return decorate
