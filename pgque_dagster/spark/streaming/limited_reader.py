"""Limits micro-batches and supports `availableNow`. Needs Spark 4.2 or newer."""

from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ...client.ticks import Tick
from .reader import PgqueStreamReader


class LimitedStreamReader(PgqueStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches of a limited number of events."""

    is_limited = True

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._target: Tick | None = None

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Returns the option's limit."""
        limit = self._options.max_events
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Records the newest tick as the end of the query."""
        position = self._lease.position().start
        self._target = self._lease.next_tick(position.id, None) or position

    def latestOffset(  # type: ignore[override]  # noqa: N802
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Finishes the events before the start, and returns the end of the next micro-batch."""
        done = self._parse(start)
        self._finish(done)
        max_events = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        tick, target = self._lease.next_tick(done.tick, max_events), self._target
        if tick is None or (target is not None and done.tick >= target.id):
            return start
        return self._offset(target if target is not None and target.id < tick.id else tick)
