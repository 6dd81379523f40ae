"""The metadata of a batch on its asset. Times and sizes are numbers, so that the UI plots them."""

from collections.abc import Callable
from typing import Any

import dagster as dg
from pyspark.sql import DataFrame

from .. import spark
from ..client.models import ReadPlan
from ..client.read_batch import ReadBatch
from ..project.keys import BATCH_ID, CONSUMER, QUEUE, SHARDS, SLOT


def batch_metadata(batch: "spark.SparkBatch") -> Callable[[], dict[str, Any]]:
    """Returns a function that returns the metadata of an output that is about to be stored.

    Call it when the work on the batch starts, because the lag is from the last tick to now.
    """
    claim = batch.claim
    found: dict[str, Any] = {QUEUE: claim.queue}
    # Text, because Dagster's pages round large numbers.
    found[BATCH_ID] = str(claim.batch_id) if claim.is_final else claim.batch_id
    if claim.is_window:
        info = claim.info()
        found["pgque/window_start"] = dg.MetadataValue.timestamp(info.start)
        found["pgque/window_end"] = dg.MetadataValue.timestamp(info.end)
    else:
        found[CONSUMER] = claim.consumer
    if not claim.shards:
        found |= _ticks(claim)
        if not claim.is_window:
            found |= {} if claim.slot is None else {SLOT: claim.slot}
            found["pgque/epoch"] = claim.lease.epoch
            found["pgque/lag_seconds"] = claim.info().lag.total_seconds()

    def metadata() -> dict[str, Any]:
        shards = {
            shard: {
                **({BATCH_ID: each.batch_id} if claim.is_final else {}),
                **_ticks(each.claim),
                "pgque/events": each.event_count,
            }
            for shard, each in batch.members.items()
        }
        of_shards = {SHARDS: shards} if shards else {}
        return {**found, **of_shards, **_plan_metadata(batch.plan), **set_aside(claim)}

    return metadata


def _ticks(claim: ReadBatch) -> dict[str, Any]:
    lease = claim.lease
    return {"pgque/prev_tick_id": lease.prev_tick_id, "pgque/tick_id": lease.tick_id}


def _plan_metadata(plan: ReadPlan) -> dict[str, Any]:
    times = {"pgque/oldest_event": plan.oldest, "pgque/newest_event": plan.newest}
    return {
        "pgque/events": plan.events,
        "pgque/bytes": plan.payload_bytes,
        **{key: dg.MetadataValue.timestamp(at) for key, at in times.items() if at is not None},
    }


def set_aside(claim: ReadBatch) -> dict[str, Any]:
    """Returns how many events have been set aside so far, as metadata.

    IO managers add it after storing, because malformed events may be found while storing.
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
