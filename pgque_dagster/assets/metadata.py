"""The metadata of a batch on its asset. Times and sizes are numbers, so that the UI plots them."""

from datetime import timedelta
from typing import Any

import dagster as dg
from pyspark.sql import DataFrame

from ..client import Client
from ..client.models import ReadPlan
from ..client.read_batch import ReadBatch
from ..project.keys import BATCH_ID, CONSUMER, QUEUE, SLOT


def data_version(client: Client, batch: ReadBatch) -> dg.DataVersion:
    """Returns the version of what a step computes from a batch or window of one database.

    It has the epoch, because another attempt may compute other data from the same batch.
    """
    version = (client.incarnation(), batch.batch_id, batch.lease.epoch)
    return dg.DataVersion(":".join(map(str, version)))


def batch_metadata(batch: ReadBatch, plan: ReadPlan, lag: timedelta) -> dict[str, Any]:
    """Returns the metadata of an output that is about to be stored.

    Args:
        batch: the claim.
        plan: how it is read.
        lag: from its last tick to the start of the work on it.
    """
    return {
        QUEUE: batch.queue,
        BATCH_ID: batch.batch_id,
        CONSUMER: batch.consumer,
        **({} if batch.slot is None else {SLOT: batch.slot}),
        "pgque/epoch": batch.lease.epoch,
        "pgque/lag_seconds": lag.total_seconds(),
        **ticks(batch),
        **plan_metadata(plan),
        **set_aside(batch),
    }


def ticks(batch: ReadBatch) -> dict[str, Any]:
    """Returns the ticks that a batch or window spans, as metadata."""
    lease = batch.lease
    return {"pgque/prev_tick_id": lease.prev_tick_id, "pgque/tick_id": lease.tick_id}


def plan_metadata(plan: ReadPlan) -> dict[str, Any]:
    """Returns the sizes and times of what is read, as metadata."""
    times = {"pgque/oldest_event": plan.oldest, "pgque/newest_event": plan.newest}
    return {
        "pgque/events": plan.events,
        "pgque/bytes": plan.payload_bytes,
        **{key: dg.MetadataValue.timestamp(at) for key, at in times.items() if at is not None},
    }


def set_aside(claim: ReadBatch) -> dict[str, Any]:
    """Returns how many events were set aside so far, as metadata.

    IO managers add it after they have stored, because malformed events may be found while storing.
    """
    requested = claim.requested
    if claim.is_window:
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
