"""The time window of a step, over the ticks that a queue retains.

A window is a partition. Its events are read as a range of ticks of each database, and nothing is
acked.
"""

from collections.abc import Mapping
from contextlib import ExitStack

import dagster as dg

from ..client import InvalidArgument
from ..client.errors import prefixed
from ..client.window import Window
from ..project.resource import PgqueResource
from .claims import Claims
from .consumption import Consumption
from .inputs import window_of


def open_windows(
    partitions: dg.TimeWindowPartitionsDefinition,
    leave_out_failed: bool,
    consumption: Consumption,
    context: dg.AssetExecutionContext,
    resources: Mapping[str, PgqueResource],
    stack: ExitStack,
) -> Claims:
    """Opens the window of a run's partition in each database.

    Raises:
        InvalidArgument: if the run has several partitions; if the window is not over, or its ticks
            are not all retained, in one of the databases; or if two resources have one database.
        PgqueError: if one of the databases cannot be reached, or refuses the window.
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
    claims = Claims(context)
    for database in consumption.databases:
        shard = f": shard {database.name}" if consumption.shards else ""
        with prefixed(f"partition {first}{shard}"):
            client = stack.enter_context(resources[database.name].client())
            database.refuse_second_name(client)
            claims.found[database.name] = Window(
                client, consumption.queue, start, end, leave_out_failed=leave_out_failed
            )
    return claims
