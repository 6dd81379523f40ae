"""The batch that a step computes. Apart from the step, because it loads Arrow and the parsers."""

import time
from collections.abc import Sequence

from pyspark.sql import DataFrame

from ..client.models import ReadPlan
from ..spark.batch import SparkBatch


class TimedBatch(SparkBatch):
    """A SparkBatch that measures how long the driver spends reading events."""

    read_seconds = 0.0

    @property
    def plan(self) -> ReadPlan:
        """The plan by which the batch is read; it also has the batch's sizes and times."""
        return self._plan

    def events(self, columns: Sequence[str] | None = None) -> DataFrame:
        """Returns the batch's events, as `SparkBatch.events` does."""
        started = time.monotonic()
        try:
            return super().events(columns)
        finally:
            self.read_seconds += time.monotonic() - started
