"""The metadata of a batch on its asset. Times and sizes are numbers, so that the UI plots them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import dagster as dg
from pyspark.sql import DataFrame

from ..client import AckResult, Batch, Client
from ..client.batch import read_plan
from ..client.models import ReadPlan
from ..keys import BATCH_ID, CONSUMER, QUEUE
from ..spark import SparkBatch
from ..spark.batch import Reader


class TimedBatch(SparkBatch):
    """A SparkBatch that measures how long the driver spends reading events."""

    read_seconds = 0.0

    def events(self, columns: Sequence[str] | None = None, *, reader: Reader = "adbc") -> DataFrame:
        """Returns the batch's events, as `SparkBatch.events` does."""
        started = time.monotonic()
        try:
            return super().events(columns, reader=reader)
        finally:
            self.read_seconds += time.monotonic() - started


@dataclass(frozen=True)
class Extent:
    """The oldest and newest event time of a batch, None without events, and its payload bytes."""

    oldest: datetime | None
    newest: datetime | None
    payload_bytes: int

    @classmethod
    def read(cls, client: Client, plan: ReadPlan) -> "Extent":
        """Computes the extent on the server, in one pass over the events."""
        parts = []
        with client.transaction() as connection:
            for part in plan.slices:
                query = (
                    "select min(ev_time), max(ev_time), coalesce(sum(octet_length(ev_data)), 0)"
                    f" from {part.rows}"
                )
                parts += connection.execute(query.encode()).fetchall()
        return cls(
            min((oldest for oldest, _, _ in parts if oldest), default=None),
            max((newest for _, newest, _ in parts if newest), default=None),
            int(sum(size for _, _, size in parts)),
        )


class Report:
    """Collects the metadata of a batch while a step works on it.

    Attributes:
        data_version: of what the step computes from the batch.

    Args:
        client: the database.
        batch: the claim.
        spark_batch: the same batch as DataFrames.
    """

    def __init__(self, client: Client, batch: Batch, spark_batch: TimedBatch) -> None:
        self._batch = batch
        self._spark_batch = spark_batch
        plan = read_plan(batch, 1)
        self._events = plan.events
        self._extent = Extent.read(client, plan)
        self._lag = batch.info().lag
        # Another attempt may compute other data from the same batch.
        version = (client.lineage(), batch.batch_id, batch.lease.epoch)
        self.data_version = dg.DataVersion(":".join(map(str, version)))
        self._started = time.monotonic()
        self._made = self._started

    def with_output(self) -> dict[str, Any]:
        """Returns the metadata of an output that is about to be stored."""
        self._made = time.monotonic()
        read = self._spark_batch.read_seconds
        lease, requested = self._batch.lease, self._batch.requested
        times = {
            "pgque/oldest_event": self._extent.oldest,
            "pgque/newest_event": self._extent.newest,
        }
        return {
            QUEUE: self._batch.queue,
            CONSUMER: self._batch.consumer,
            BATCH_ID: self._batch.batch_id,
            "pgque/prev_tick_id": lease.prev_tick_id,
            "pgque/tick_id": lease.tick_id,
            "pgque/epoch": lease.epoch,
            "pgque/events": self._events,
            **{key: dg.MetadataValue.timestamp(at) for key, at in times.items() if at is not None},
            "pgque/lag_seconds": self._lag.total_seconds(),
            "pgque/bytes": self._extent.payload_bytes,
            "pgque/read_seconds": read,
            "pgque/process_seconds": self._made - self._started - read,
            "pgque/nacked": requested.nacked,
            "pgque/dead_lettered": requested.dead_lettered,
        }

    def ack(self) -> tuple[AckResult, dict[str, Any]]:
        """Acks the batch. Returns the result, and the metadata that is known only afterwards."""
        stored = time.monotonic()
        result = self._batch.ack()
        return result, {
            BATCH_ID: self._batch.batch_id,
            "pgque/store_seconds": stored - self._made,
            "pgque/ack_seconds": time.monotonic() - stored,
            "pgque/retries_scheduled": result.nacked,
            "pgque/dead_letters_written": result.dead_lettered,
        }


def column_schema(value: Any) -> dict[str, Any]:
    """Returns the columns of a DataFrame as metadata; empty for other values."""
    if not isinstance(value, DataFrame):
        return {}
    columns = [
        dg.TableColumn(
            field.name,
            field.dataType.simpleString(),
            constraints=dg.TableColumnConstraints(nullable=field.nullable),
        )
        for field in value.schema
    ]
    return {"dagster/column_schema": dg.TableSchema(columns)}
