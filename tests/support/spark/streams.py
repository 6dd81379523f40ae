"""Streaming queries for tests, and what they delivered."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from pgque_dagster.spark import register
from tests.support.runner.versions import is_older

PATIENCE_SECONDS = 120

# docs/streaming.md says so.
needs_limits = pytest.mark.skipif(
    is_older("pyspark", (4, 2)), reason="PySpark before 4.2 does not limit micro-batches"
)
needs_available_now = pytest.mark.skipif(
    is_older("pyspark", (4, 2)),
    reason="PySpark before 4.2 runs one micro-batch for availableNow, and does not finish it",
)


class Sink:
    """Keeps the payloads of each micro-batch, or fails at one.

    Attributes:
        micro_batches: the payloads by number of micro-batch, as the last attempt delivered them.
        attempts: the numbers, in the order in which they came.
        fail_at: the micro-batch at which storing fails.
    """

    def __init__(self, fail_at: int | None = None) -> None:
        self.micro_batches: dict[int, list[str]] = {}
        self.attempts: list[int] = []
        self.fail_at = fail_at

    def __call__(self, events: DataFrame, number: int) -> None:
        self.attempts.append(number)
        rows = events.select("ev_id", "ev_data").collect()
        if number == self.fail_at:
            raise RuntimeError("the sink is full")
        self.micro_batches[number] = [row.ev_data for row in sorted(rows)]

    @property
    def delivered(self) -> list[str]:
        """All payloads, in the order of their micro-batches."""
        return [
            text for number in sorted(self.micro_batches) for text in self.micro_batches[number]
        ]


class Stream:
    """A query over the queue `orders` that can be started again and again.

    Args:
        spark: the session.
        url: the database.
        checkpoint: where Spark keeps the query's progress.
        options: of the source, besides; a lease of 2 seconds unless they say otherwise.
    """

    def __init__(self, spark: SparkSession, url: str, checkpoint: Path, **options: str) -> None:
        register(spark)
        self.spark = spark
        self._checkpoint = str(checkpoint)
        self.options = {
            "url": url,
            "queue": "orders",
            "consumer": "revenue",
            "lease_seconds": "2",
            **options,
        }

    def events(self) -> DataFrame:
        return self.spark.readStream.format("pgque").options(**self.options).load()

    def writer(self, rows: DataFrame | None = None) -> DataStreamWriter:
        rows = self.events() if rows is None else rows
        return rows.writeStream.option("checkpointLocation", self._checkpoint)

    def start(self, sink: Callable[[DataFrame, int], None], **trigger: Any) -> StreamingQuery:
        """Starts it; it polls again and again unless another trigger is given."""
        trigger = trigger or {"processingTime": "100 milliseconds"}
        return self.writer().foreachBatch(sink).trigger(**trigger).start()

    def drain(self, sink: Callable[[DataFrame, int], None]) -> None:
        """Runs it until everything that was there is delivered; raises what ends it."""
        query = self.start(sink, availableNow=True)
        try:
            assert query.awaitTermination(PATIENCE_SECONDS), "the query does not end"
        finally:
            query.stop()
