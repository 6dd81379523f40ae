"""`@pgque_window_asset`: an asset over windows of time, of the ticks that a queue retains.

A window is a partition. Its events are read as a range of ticks. No consumer is registered and
nothing is acked, so a window can be computed at any time, in any order, and again.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg

from ..client import InvalidArgument
from ..client.window import Window
from ..project.keys import QUEUE, queue_key
from ..project.resource import PgqueResource
from .compute_function import make_step
from .consumption import ComputeFunction, Consumption
from .inputs import window_of
from .outputs import AssetRecord, StepResult
from .step import Step, executors_address

if TYPE_CHECKING:
    from ..spark import SparkBatch


def pgque_window_asset(
    *,
    queue: str,
    partitions_def: dg.TimeWindowPartitionsDefinition,
    slices: int = 4,
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

    An event belongs to the window of the tick with which it became visible: that of its commit, or
    the next one if no tick came in between. A window that is not over fails its run, and so does
    one whose ticks are not all retained.

    Args:
        queue: the queue's name.
        partitions_def: the windows, such as HourlyPartitionsDefinition.
        slices: as for `pgque_asset`.
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
        asset_options: any other option of `@dg.asset`.

    Returns:
        The decorator. The asset needs the resources `pgque` and `pyspark`.

    Raises:
        DagsterInvalidDefinitionError: if `partitions_def` is not of time windows, or as for
            `pgque_asset`.

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
        if not isinstance(partitions_def, dg.TimeWindowPartitionsDefinition):
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
            compute_fn,
            queue,
            consumer="window",
            lease_ttl=timedelta(minutes=1),
            slices=slices,
            # The IO manager gets a partition, which it must keep apart for any asset.
            batch_safe=True,
        )
        required = set(options.pop("required_resource_keys", None) or ())
        if io_manager_key is None and consumption.stores_itself:
            # The function stores its results itself, so the asset needs no IO manager.
            options.setdefault("dagster_type", dg.Nothing)
        else:
            required.add(io_manager_key or "io_manager")

        def work(
            context: dg.AssetExecutionContext,
            pgque: PgqueResource,
            pyspark: Any,
            call: "Callable[[SparkBatch], Any]",
        ) -> Iterator[StepResult | AssetRecord]:
            with pgque.client() as client:
                address = executors_address(pgque, client.url)
                step = _WindowStep(
                    context, client, address, consumption, pyspark, call, leave_out_failed
                )
                yield from step.run_partition(partitions_def)

        asset: dg.AssetsDefinition = dg.asset(
            name=name,
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
        )(make_step(compute_fn, work, required))
        return asset

    return decorate


@dataclass(frozen=True)
class _WindowStep(Step):
    """A running step that computes a window. Its `consumption` says what to read, and how.

    Args:
        leave_out_failed: whether the function may leave events out.
    """

    leave_out_failed: bool

    def run_partition(
        self, partitions: dg.TimeWindowPartitionsDefinition
    ) -> Iterator[StepResult | AssetRecord]:
        """Computes the window of the run's partition.

        Raises:
            InvalidArgument: if the run has several partitions, the window is not over, or its ticks
                are not all retained.
        """
        first, *others = keys = self.context.partition_keys
        if others:
            raise InvalidArgument(
                f"this run has {len(keys)} partitions, from {first} to {keys[-1]}, and a step "
                "stores one window",
                "Start a run for each partition. A backfill does so by default, and with "
                "BackfillPolicy.multi_run() also if other assets of the job have another policy.",
            )
        try:
            window = Window(
                self.client,
                self.consumption.queue,
                *window_of(partitions, first),
                leave_out_failed=self.leave_out_failed,
            )
        except InvalidArgument as error:
            raise InvalidArgument(f"partition {first}: {error.args[0]}", error.hint) from error
        name = f"the window from {window.info().start} of queue {window.queue}"
        outputs, _ = yield from self.compute(window, name)
        outputs.failed_checks()
