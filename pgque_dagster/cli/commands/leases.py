"""Commands for leases: list, release."""

import click

from ...client import PgqueError, calls
from ...client.models import Lease
from ..database import Database, pass_database
from ..examples import examples
from ..output import show_result, show_rows


@click.group(epilog=examples("pgque leases list", "pgque leases release orders billing"))
def leases() -> None:
    """List and release the leases of open batches."""


@leases.command("list", epilog=examples("pgque leases list", "pgque leases list orders"))
@click.argument("queue", required=False)
@pass_database
def list_(database: Database, queue: str | None) -> None:
    """Show who has the open batches of QUEUE, or of all queues, and until when."""
    with database.client() as client:
        rows = [
            {
                "queue": consumer.queue,
                "consumer": consumer.name,
                "batch": lease.batch_id,
                "owner": lease.owner,
                "until": lease.until,
                "lease": "live" if lease.is_live else "ended",
            }
            for consumer in client.consumers(queue)
            if consumer.batch_id is not None
            if (lease := client.lease_info(consumer.queue, consumer.name)) is not None
        ]
    show_rows(rows, "no batch is open")


@leases.command(
    epilog=examples("pgque leases release orders billing", "pgque leases release orders billing -y")
)
@click.argument("queue")
@click.argument("consumer")
@click.option("-y", "--yes", is_flag=True, help="Release a live lease, too.")
@pass_database
def release(database: Database, queue: str, consumer: str, yes: bool) -> None:
    """Release the lease on the open batch of CONSUMER, so that it can be claimed at once.

    The batch stays open and no event is lost. If the owner of a live lease still works, its ack is
    refused once somebody else has claimed the batch.
    """
    with database.client() as client:
        found = client.lease_info(queue, consumer)
        if found is None or found.owner is None or found.until is None:
            raise PgqueError(
                f"no lease is on a batch of consumer {consumer} on {queue}",
                "`pgque leases list` shows all.",
            )
        if found.is_live and not yes:
            raise PgqueError(
                f"{found.owner} has a live lease on batch {found.batch_id}"
                f" until {found.until:%F %T%z}",
                "If it does not run any more, or its work may be done again, add --yes.",
            )
        lease = Lease(found.batch_id, found.owner, found.epoch, found.until, 0, 0)
        client.run(calls.batches.release(lease))
    show_result(
        f"released the lease of {found.owner} on batch {found.batch_id}",
        queue=queue,
        consumer=consumer,
        batch=found.batch_id,
        owner=found.owner,
    )
