"""The metadata of a batch on its asset. Times and sizes are numbers, so that the UI plots them."""

import time
from typing import TYPE_CHECKING, Any

import dagster as dg
from pyspark.sql import DataFrame

from ..client import AckResult, Batch, Client
from ..client.read_batch import ReadBatch
from ..client.window import Window
from ..project.keys import BATCH_ID, CONSUMER, QUEUE, SLOT

# Metadata that mean nothing for a window, which nobody claims.
_OF_CLAIMS = {CONSUMER, "pgque/epoch", "pgque/lag_seconds"}

if TYPE_CHECKING:
    from ..spark import SparkBatch


class Report:
    """Collects the metadata of a batch while a step works on it.

    Attributes:
        data_version: of what the step computes from the batch.

    Args:
        client: the database.
        batch: the claim, or a window.
        spark_batch: the same batch as DataFrames.
    """

    def __init__(self, client: Client, batch: ReadBatch, spark_batch: "SparkBatch") -> None:
        self._batch = batch
        self._plan = spark_batch.plan
        self._lag = batch.info().lag
        # Another attempt may compute other data from the same batch.
        version = (client.incarnation(), batch.batch_id, batch.lease.epoch)
        self.data_version = dg.DataVersion(":".join(map(str, version)))
        self._started = time.monotonic()
        self._made = self._started

    def with_output(self) -> dict[str, Any]:
        """Returns the metadata of an output that is about to be stored."""
        self._made = time.monotonic()
        lease = self._batch.lease
        times = {
            "pgque/oldest_event": self._plan.oldest,
            "pgque/newest_event": self._plan.newest,
        }
        made = {
            QUEUE: self._batch.queue,
            CONSUMER: self._batch.consumer,
            **({} if self._batch.slot is None else {SLOT: self._batch.slot}),
            BATCH_ID: self._batch.batch_id,
            "pgque/prev_tick_id": lease.prev_tick_id,
            "pgque/tick_id": lease.tick_id,
            "pgque/epoch": lease.epoch,
            "pgque/events": self._plan.events,
            **{key: dg.MetadataValue.timestamp(at) for key, at in times.items() if at is not None},
            "pgque/lag_seconds": self._lag.total_seconds(),
            "pgque/bytes": self._plan.payload_bytes,
            "pgque/process_seconds": self._made - self._started,
            **set_aside(self._batch),
        }
        if not isinstance(self._batch, Window):
            return made
        info = self._batch.info()
        return {
            **{key: value for key, value in made.items() if key not in _OF_CLAIMS},
            "pgque/window_start": dg.MetadataValue.timestamp(info.start),
            "pgque/window_end": dg.MetadataValue.timestamp(info.end),
        }

    def ack(self, batch: Batch) -> tuple[AckResult, dict[str, Any]]:
        """Acks the batch. Returns the result, and the metadata that is known only afterwards."""
        stored = time.monotonic()
        result = batch.ack()
        return result, {
            BATCH_ID: self._batch.batch_id,
            "pgque/store_seconds": stored - self._made,
            "pgque/ack_seconds": time.monotonic() - stored,
            "pgque/retries_scheduled": result.nacked,
            "pgque/dead_letters_written": result.dead_lettered,
        }


def set_aside(claim: ReadBatch) -> dict[str, Any]:
    """Returns how many events were set aside so far, as metadata.

    IO managers add it after they have stored, because malformed events may be found while storing.
    """
    requested = claim.requested
    if isinstance(claim, Window):
        return {"pgque/left_out": requested.nacked + requested.dead_lettered}
    return {"pgque/nacked": requested.nacked, "pgque/dead_lettered": requested.dead_lettered}


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
