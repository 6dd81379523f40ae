"""A shared consumer, whose subconsumers hold a batch each at the same time."""

from datetime import timedelta

from . import calls
from .batch import Batch
from .calls.call import Call
from .client import Client
from .models import Limits


def member_name(consumer: str, subconsumer: str) -> str:
    """The name under which a subconsumer is registered in its queue."""
    return f"{consumer}.{subconsumer}"


def register_subconsumer(queue: str, consumer: str, subconsumer: str) -> Call[bool]:
    """A subconsumer, of a normal consumer without an open batch, too; False if it was there."""
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
    """Opens a subconsumer's next batch under a lease, or takes over the one that nobody holds.

    Args:
        client: the database.
        queue: the queue's name.
        consumer: the name that the subconsumers share.
        subconsumer: which of them.
        owner: who takes it, for others to read.
        ttl: how long the lease lasts without renewal.
        limits: which batch to open.
        batch_id: claims this open batch and no other.

    Returns:
        The claimed batch, or None when there is no batch.

    Raises:
        BatchLeased: if somebody else holds a live lease.
        BatchNotOpen: if `batch_id` is not the subconsumer's open batch.
    """
    call = calls.batches.claim_coop(queue, consumer, subconsumer, owner, ttl, limits, batch_id)
    lease = client.run(call)
    return Batch(client, queue, consumer, lease, ttl) if lease else None
