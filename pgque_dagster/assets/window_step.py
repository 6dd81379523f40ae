"""How a step computes windows of time: find their ticks, compute, store, record.

Dagster stores and records the window of a run with one partition. A step can yield its output only
once, so for a run with several partitions this module stores each window by the IO manager, and
Dagster records all partitions at the end.
"""

from collections.abc import Callable, Iterator
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
from .metadata import Report
from .outputs import AssetRecord, Outputs, StepResult, outputs_are_checked

if TYPE_CHECKING:
    from ..spark import SparkBatch

# Metadata of batches that mean nothing for a window.
_OF_CLAIMS = {CONSUMER, "pgque/epoch", "pgque/lag_seconds"}


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
            partition=partition,
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
                    if partition is None:
                        yield outputs.described(event, metadata, report.data_version)
                    elif isinstance(event, dg.MaterializeResult | dg.Output):
                        own = yield from outputs.store(event, metadata)
                        (key,) = keys.values()
                        self.context.add_asset_metadata(own, key, partition)
                    else:
                        yield event
                    outputs.mark_stored(event)
            window.run_checks()
        finally:
            spark_batch.close()
        gate.failed_checks()


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
