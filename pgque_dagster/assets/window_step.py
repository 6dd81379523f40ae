"""How a step computes a window of time: finds its ticks and computes it. Dagster stores it."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import dagster as dg

from ..client import InvalidArgument
from ..client.window import Window
from .outputs import AssetRecord, StepResult
from .step import Step


@dataclass(frozen=True)
class WindowStep(Step):
    """A running step that computes a window. Its `consumption` says what to read, and how.

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
        yield from self._compute(self._window(whole_minute(from_time), whole_minute(to_time)))

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
            window = self._window(*window_of(partitions, first))
        except InvalidArgument as error:
            raise InvalidArgument(f"partition {first}: {error.args[0]}", error.hint) from error
        yield from self._compute(window)

    def _window(self, start: datetime, end: datetime) -> Window:
        left_out = self.leave_out_failed
        return Window(self.client, self.consumption.queue, start, end, leave_out_failed=left_out)

    def _compute(self, window: Window) -> Iterator[StepResult | AssetRecord]:
        name = f"the window from {window.info().start} of queue {window.queue}"
        gate, _ = yield from self.compute(window, name)
        gate.failed_checks()


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
