"""Refuses a batch that a run may have stored before its asset got several databases.

Such a run may have died between the sink's commit and its ack. Its rows are in the table that the
asset had then, where only a run of that definition finds them. A run over several databases has
another table, and would store the batch again.
"""

from datetime import UTC, datetime
from typing import Any

import dagster as dg

from ..client import Batch, Client, InvalidArgument
from ..client.models import Lease, LeaseInfo
from ..client.sharded_claim import ShardedClaim
from ..project.keys import BATCH_ID, CONSUMER, INCARNATION, QUEUE, run_of_owner
from .consumption import Consumption


def refuse_batch_of_one(
    context: dg.AssetExecutionContext, client: Client, consumption: Consumption, sink: Any
) -> None:
    """Refuses, before it is claimed, an open batch that a run of one database has had.

    An unclaimed batch uses up no attempt, and its lease still names that run. A batch that the
    table of several databases already has is acked, not refused.

    Raises:
        InvalidArgument: naming the run and what to do.
    """
    lease = client.lease_info(consumption.queue, consumption.consumer)
    if lease is None:
        return
    run_id = _run_of_one(context, client, consumption, lease)
    if run_id is None or _is_stored(client, consumption, sink, lease):
        return
    raise InvalidArgument(
        f"run {run_id[:8]} had batch {lease.batch_id} of {consumption} as an asset of one database "
        "and did not ack it: it may have stored it in the table of that asset, and here its events "
        "would count twice",
        "Go back to the definition with one database and its table, materialize the asset until "
        f"`{consumption.database.command} status` shows no open batch of the consumer, and set "
        "databases again.",
    )


def _run_of_one(
    context: dg.AssetExecutionContext, client: Client, consumption: Consumption, lease: LeaseInfo
) -> str | None:
    """Returns the id of a run of one database that had the batch.

    The lease names a run that was killed. Dagster knows a run that was requested for the batch and
    has started.
    """
    if owner := run_of_owner(lease.owner, over_shards=False):
        return owner
    tags = {
        QUEUE: consumption.queue,
        CONSUMER: consumption.consumer,
        BATCH_ID: str(lease.batch_id),
        INCARNATION: str(client.incarnation()),
    }
    records = context.instance.get_run_records(dg.RunsFilter(tags=tags))
    return next((each.dagster_run.run_id for each in records if each.start_time), None)


def _is_stored(client: Client, consumption: Consumption, sink: Any, lease: LeaseInfo) -> bool:
    """Returns whether the table of several databases has the batch."""
    queue, consumer = consumption.queue, consumption.consumer
    unclaimed = Lease(lease.batch_id, "", lease.epoch, datetime.now(UTC), 0, 0)
    batch = Batch(client, queue, consumer, unclaimed, consumption.lease_ttl)
    found = sink.stored(ShardedClaim({consumption.database.name: batch}))
    # This may also say why the shard is refused.
    return any(isinstance(each, int) for each in found.values())
