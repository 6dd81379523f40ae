"""How a step computes windows of time: find their ticks, compute, store, record.

Dagster stores and records the window of a run with one partition. A step can yield its output only
once, so for a run with several partitions this module stores each window by the IO manager, and
Dagster records all partitions at the end.
"""

import inspect
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import dagster as dg

from ..client import Client, InvalidArgument
from ..client.window import Window
from ..keys import CONSUMER
from ..spark.address import DatabaseAddress
from ..spark.cluster.executor_errors import clear_executor_errors
from ..spark.cluster.session import open_session
from ..spark.cluster.time_limit import TimeLimit
from .ack_gate import AckGate
from .consumption import Consumption
from .current_batch import working_on
from .metadata import Report, column_schema
from .outputs import NO_VALUE, AssetRecord, Outputs, Result, StepResult, outputs_are_checked

if TYPE_CHECKING:
    from ..spark import SparkBatch

# Metadata of batches that mean nothing for a window.
_OF_CLAIMS = {CONSUMER, "pgque/epoch", "pgque/lag_seconds"}
# Dagster 1.12 has no such parameter.
_TELLS_PARTITIONS = "asset_partitions_def" in inspect.signature(dg.build_output_context).parameters


@dataclass(frozen=True)
class WindowStep:
    """A running step.

    Args:
        context: of the step.
        client: the database.
        address: how Spark's executors find the database.
        consumption: what to read, and how.
        pyspark: the resource that has the Spark session.
        call: the compute function; it takes only the batch, its other arguments are bound.
    """

    context: dg.AssetExecutionContext
    client: Client
    address: DatabaseAddress
    consumption: Consumption
    pyspark: Any
    call: "Callable[[SparkBatch], Any]"

    def run(
        self, partitions: dg.TimeWindowPartitionsDefinition, *, leave_out_failed: bool
    ) -> Iterator[StepResult | AssetRecord]:
        """Computes the windows of the run's partitions, after all of them were found.

        Raises:
            InvalidArgument: if a window is not over, or its ticks are not all retained.
        """
        windows = {
            key: self._find(key, *window_of(partitions, key), leave_out_failed)
            for key in self.context.partition_keys
        }
        if len(windows) == 1:
            ((_, window),) = windows.items()
            yield from self._compute(window, None)
            return
        for key, window in windows.items():
            yield from self._compute(window, key)
        (asset_key,) = self.context.selected_asset_keys
        epochs = max(window.lease.epoch for window in windows.values())
        version = dg.DataVersion(f"{self.client.lineage()}:{min(windows)}:{max(windows)}:{epochs}")
        yield dg.MaterializeResult(asset_key=asset_key, data_version=version)

    def _find(self, key: str, start: datetime, end: datetime, leave_out_failed: bool) -> Window:
        queue = self.consumption.queue
        try:
            return Window(self.client, queue, start, end, leave_out_failed=leave_out_failed)
        except InvalidArgument as error:
            raise InvalidArgument(f"partition {key}: {error.args[0]}", error.hint) from error

    def _compute(self, window: Window, partition: str | None) -> Iterator[StepResult | AssetRecord]:
        """Computes a window. Stores it if `partition` is given; otherwise, Dagster does."""
        # Late, so that a code location loads without Arrow.
        from .timed_batch import TimedBatch

        spark_batch = TimedBatch(
            open_session(self.pyspark),
            window,
            self.client.url,
            slices=self.consumption.slices,
            address=self.address,
        )
        spark_batch.settles_late = outputs_are_checked(self.context, self.consumption)
        keys = dict(self.context.assets_def.keys_by_output_name)
        gate = AckGate(keys, [])
        outputs = Outputs(
            self.context,
            keys,
            gate,
            self.consumption.returns_nothing,
            wants_values=False,
            # The IO manager gets partitions, which it must keep apart for any asset.
            batch_safe=True,
        )
        report = Report(self.client, window, spark_batch)
        name = f"the window from {window.info().start} of queue {window.queue}"
        try:
            with (
                clear_executor_errors(),
                working_on(self.context.run.run_id, keys.values(), spark_batch),
                TimeLimit(spark_batch.spark, self.consumption.timeout, name) as limit,
            ):
                for event in limit.iterate(lambda: outputs.events(self.call(spark_batch))):
                    outputs.admit(event)
                    metadata = _metadata(report, window)
                    if partition is not None and isinstance(
                        event, dg.MaterializeResult | dg.Output
                    ):
                        yield from self._store(event, metadata, partition)
                    else:
                        yield outputs.described(event, metadata, report.data_version)
                    outputs.mark_stored(event)
            window.run_checks()
        finally:
            spark_batch.close()
        gate.failed_checks()

    def _store(
        self, result: Result, metadata: Mapping[str, Any], partition: str
    ) -> Iterator[AssetRecord]:
        """Stores a partition as Dagster would, and adds the metadata of its materialization."""
        ((name, key),) = self.context.assets_def.keys_by_output_name.items()
        own = {**metadata, **column_schema(result.value), **(result.metadata or {})}
        if result.value is not NO_VALUE:
            own |= yield from self._call_manager(name, key, result.value, own, partition)
        self.context.add_asset_metadata(own, key, partition)

    def _call_manager(
        self, name: str, key: dg.AssetKey, value: Any, metadata: Mapping[str, Any], partition: str
    ) -> Generator[AssetRecord, None, dict[str, Any]]:
        """Returns the metadata that the IO manager adds."""
        definition = self.context.op_def.output_def_named(name)
        manager = getattr(self.context.resources, definition.io_manager_key)
        told = {"asset_partitions_def": self.context.assets_def.partitions_def}
        output = dg.build_output_context(
            step_key=self.context.op_def.name,
            name=name,
            run_id=self.context.run.run_id,
            asset_key=key,
            definition_metadata=self.context.assets_def.get_asset_spec(key).metadata,
            # Dagster passes each entry as a MetadataValue.
            output_metadata={**dg.AssetMaterialization(key, metadata=metadata).metadata},
            dagster_type=definition.dagster_type,
            partition_key=partition,
            **(told if _TELLS_PARTITIONS else {}),
        )
        if not output.has_asset_partitions and not getattr(manager, "batch_safe", False):
            raise InvalidArgument(
                f"this version of Dagster cannot tell the IO manager {definition.io_manager_key} "
                f"({type(manager).__name__}) which of the run's partitions it stores",
                "Use a newer Dagster, have a backfill start one run for each partition, or use the "
                "IO manager for Parquet, Delta or Iceberg.",
            )
        handled = manager.handle_output(output, value)
        added: dict[str, Any] = {}
        # A generator must be iterated, because it stores nothing before.
        for item in handled if inspect.isgenerator(handled) else ():
            if isinstance(item, dg.AssetMaterialization):
                yield item
            elif isinstance(item, dict):
                added |= item
        yield from output.get_logged_events()
        return {**added, **output.get_logged_metadata()}


def window_of(partitions: dg.TimeWindowPartitionsDefinition, key: str) -> tuple[datetime, datetime]:
    """Returns the beginning and the end of a partition."""
    window = partitions.time_window_for_partition_key(key)
    return window.start, window.end


def _metadata(report: Report, window: Window) -> dict[str, Any]:
    """Returns the metadata of a window's output."""
    info = window.info()
    return {
        **{key: value for key, value in report.with_output().items() if key not in _OF_CLAIMS},
        "pgque/window_start": dg.MetadataValue.timestamp(info.start),
        "pgque/window_end": dg.MetadataValue.timestamp(info.end),
    }
