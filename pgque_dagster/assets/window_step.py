"""How a step computes windows of time: find their ticks, compute, store, record.

Dagster stores and records the window of a run with one partition. A step can yield its output only
once, so for a run with several partitions this module stores each window by the IO manager, and
Dagster records all partitions at the end.
"""

import inspect
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import dagster as dg

from ..client import InvalidArgument
from ..client.window import Window
from .metadata import column_schema
from .outputs import NO_VALUE, AssetRecord, Result, StepResult
from .step import Step

# Dagster 1.12 has no such parameter.
_TELLS_PARTITIONS = "asset_partitions_def" in inspect.signature(dg.build_output_context).parameters


@dataclass(frozen=True)
class WindowStep(Step):
    """A running step that computes windows. Its `consumption` says what to read, and how.

    Args:
        leave_out_failed: whether the function may leave events out.
    """

    leave_out_failed: bool

    def run_window(self, from_time: str, to_time: str) -> Iterator[StepResult | AssetRecord]:
        """Computes the window that the run's config names.

        Raises:
            InvalidArgument: if the times name no window, it is not over, or not all of its ticks
                are retained.
        """
        start, end = whole_minute(from_time), whole_minute(to_time)
        yield from self._compute(self._window(start, end), None)

    def run_partitions(
        self, partitions: dg.TimeWindowPartitionsDefinition
    ) -> Iterator[StepResult | AssetRecord]:
        """Computes the windows of the run's partitions, after all of them were found.

        Raises:
            InvalidArgument: if a window is not over, or its ticks are not all retained.
        """
        windows = {
            key: self._find(key, *window_of(partitions, key)) for key in self.context.partition_keys
        }
        if len(windows) == 1:
            ((_, window),) = windows.items()
            yield from self._compute(window, None)
            return
        for key, window in windows.items():
            yield from self._compute(window, key)
        (asset_key,) = self.context.selected_asset_keys
        epochs = max(window.lease.epoch for window in windows.values())
        version = dg.DataVersion(
            f"{self.client.incarnation()}:{min(windows)}:{max(windows)}:{epochs}"
        )
        yield dg.MaterializeResult(asset_key=asset_key, data_version=version)

    def _window(self, start: datetime, end: datetime) -> Window:
        left_out = self.leave_out_failed
        return Window(self.client, self.consumption.queue, start, end, leave_out_failed=left_out)

    def _find(self, key: str, start: datetime, end: datetime) -> Window:
        try:
            return self._window(start, end)
        except InvalidArgument as error:
            raise InvalidArgument(f"partition {key}: {error.args[0]}", error.hint) from error

    def _compute(self, window: Window, partition: str | None) -> Iterator[StepResult | AssetRecord]:
        """Computes a window. Stores it if `partition` is given; otherwise, Dagster does."""
        name = f"the window from {window.info().start} of queue {window.queue}"
        store = None if partition is None else partial(self._store, partition)
        gate, _ = yield from self.compute(window, name, store)
        gate.failed_checks()

    def _store(
        self, partition: str, result: Result, metadata: Mapping[str, Any]
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


def whole_minute(text: str) -> datetime:
    """Returns a time from a run's config.

    Raises:
        InvalidArgument: if it is no time with a zone, or has seconds: the window is stored under
            the minute at which it begins.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None or found.second or found.microsecond:
        raise InvalidArgument(
            f"{text!r} is no whole minute with a zone", "Write it as 2030-12-24T18:00+00:00."
        )
    return found


def window_of(partitions: dg.TimeWindowPartitionsDefinition, key: str) -> tuple[datetime, datetime]:
    """Returns the beginning and the end of a partition."""
    window = partitions.time_window_for_partition_key(key)
    return window.start, window.end
