"""How a step computes a window of time, of the ticks that a queue retains.

A window is a partition. Its events are read as a range of ticks of each database, and nothing is
acked. So a window of several databases is stored whole or not at all.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import dagster as dg

from .. import spark
from ..client import InvalidArgument
from ..client.errors import prefixed
from ..client.window import ShardedWindow, Window
from ..project.keys import BATCH_ID, QUEUE, SHARDS
from ..project.resource import PgqueResource
from .consumption import Consumption
from .inputs import window_of
from .metadata import data_version, plan_metadata, set_aside, ticks
from .outputs import StepResult
from .step import compute, spark_batches


def compute_window(
    consumption: Consumption,
    partitions: dg.TimeWindowPartitionsDefinition,
    leave_out_failed: bool,
    context: dg.AssetExecutionContext,
    resources: Mapping[str, PgqueResource],
    pyspark: Any,
    call: "Callable[[spark.SparkBatch], Any]",
) -> Iterator[StepResult]:
    """Computes the window of a run's partition in a step.

    Raises:
        InvalidArgument: if the run has several partitions; if the window is not over, or its ticks
            are not all retained, in one of the databases; or if two resources have one database.
        PgqueError: if one of the databases cannot be reached, or refuses it.
    """
    first, *others = keys = context.partition_keys
    if others:
        raise InvalidArgument(
            f"this run has {len(keys)} partitions, from {first} to {keys[-1]}, and a step "
            "stores one window",
            "Start a run for each partition. A backfill does so by default, and with "
            "BackfillPolicy.multi_run() also if other assets of the job have another policy.",
        )
    start, end = window_of(partitions, first)
    with ExitStack() as stack:
        windows: dict[str, Window] = {}
        for database in consumption.databases:
            shard = f": shard {database.name}" if consumption.shards else ""
            with prefixed(f"partition {first}{shard}"):
                client = stack.enter_context(resources[database.name].client())
                database.refuse_second_name(client)
                windows[database.name] = Window(
                    client, consumption.queue, start, end, leave_out_failed=leave_out_failed
                )
        members = spark_batches(consumption, pyspark, resources, windows)
        if consumption.shards:
            sharded = ShardedWindow(windows)
            batch: spark.SparkBatch = spark.ShardedBatch(sharded, members)
            version = dg.DataVersion(str(sharded.digest))
        else:
            (batch,) = members.values()
            version = data_version(client, batch.claim)

        def metadata() -> dict[str, Any]:
            return _metadata(batch) | consumption.database.tags

        outputs = yield from compute(context, consumption, batch, call, metadata, version)
        outputs.failed_checks()


def _metadata(batch: "spark.SparkBatch") -> dict[str, Any]:
    """Returns the metadata of a window that is about to be stored."""
    claim, info = batch.claim, batch.claim.info()
    read = ticks(claim)
    if isinstance(batch, spark.ShardedBatch):
        read = {
            SHARDS: {
                shard: {**ticks(member.claim), "pgque/events": member.event_count}
                for shard, member in batch.members.items()
            }
        }
    return {
        QUEUE: batch.queue,
        BATCH_ID: batch.batch_id,
        "pgque/window_start": dg.MetadataValue.timestamp(info.start),
        "pgque/window_end": dg.MetadataValue.timestamp(info.end),
        **read,
        **plan_metadata(batch.plan),
        **set_aside(claim),
    }
