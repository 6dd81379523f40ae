"""Cooperative consumers: each subconsumer of a consumer can hold a batch at the same time."""

from datetime import timedelta

from . import calls
from .batch import Batch
from .calls.call import Call
from .client import Client
from .models import Limits


def member_name(consumer: str, subconsumer: str) -> str:
    """Returns the name under which a queue knows a subconsumer."""
    return f"{consumer}.{subconsumer}"


def register_subconsumer(queue: str, consumer: str, subconsumer: str) -> Call[bool]:
    """Registers a subconsumer; False if it exists. Converts a normal consumer without a batch."""
    return Call(
        "select pgque.register_subconsumer(%s, %s, %s, true) = 1",
        (queue, consumer, subconsumer),
        lambda rows: bool(rows[0][0]),
    )


def claim_shared(
    client: Client,
    queue: str,
    consumer: str,
    subconsumer: str,
    *,
    owner: str,
    ttl: timedelta,
    limits: Limits,
    batch_id: int | None = None,
) -> Batch | None:
    """Claims a subconsumer's next batch, or its open batch if no live lease is on it.

    Args:
        client: the database.
        queue: the queue's name.
        consumer: the name of the cooperative consumer.
        subconsumer: the name of the subconsumer.
        owner: who claims the batch; others see this name.
        ttl: how long the lease lasts without renewal.
        limits: which batch to open.
        batch_id: if given, claims only this open batch.

    Returns:
        The claimed batch, or None when there is no batch.

    Raises:
        BatchLeased: if another owner holds a live lease.
        BatchNotOpen: if `batch_id` is not the subconsumer's open batch.
    """
    call = calls.batches.claim_coop(queue, consumer, subconsumer, owner, ttl, limits, batch_id)
    lease = client.run(call)
    return Batch(client, queue, consumer, lease, ttl) if lease else None
