"""Commands for consumers: register, move, release."""

import click

from ...client import Client, PgqueError
from ...client.batch import release as release_batch
from ...client.models import ConsumingAsset
from ...client.registrations import move_to_deployment
from ..app import command
from ..printing import show_result
from ..times import QueuePosition


@command(
    "pgque register orders billing",
    "pgque register orders audit --start-at earliest",
    "pgque register orders audit --start-at 2026-05-24T18:00",
)
@click.option(
    "--start-at",
    type=QueuePosition(),
    default="latest",
    show_default=True,
    help="Where it starts: earliest, the oldest event that is retained; latest, the events sent "
    "from now on; a time, from which it gets all events; or the number of a tick.",
)
def register(client: Client, queue: str, consumer: str, start_at: str) -> None:
    """Register CONSUMER on QUEUE. A consumer that is already registered stays where it is."""
    new = client.register_consumer(queue, consumer, start_at=start_at)
    show_result(
        f"{'registered' if new else 'there was already'} consumer {consumer} on {queue}",
        registered=new,
    )


@command(
    "pgque unregister orders billing",
    "pgque unregister orders billing --keep-dead-letters",
    "pgque unregister orders billing --yes",
)
@click.option(
    "--keep-dead-letters",
    is_flag=True,
    help="Keep the dead letters, to inspect or replay them later.",
)
@click.option("--yes", is_flag=True, help="Lose unread events, retries and dead letters.")
def unregister(
    client: Client, queue: str, consumer: str, keep_dead_letters: bool, yes: bool
) -> None:
    """Unregister CONSUMER from QUEUE and delete its retries and dead letters.

    Refused if CONSUMER would lose any or is working on a batch, unless --yes is given.
    """
    client.unregister_consumer(queue, consumer, keep_dead_letters=keep_dead_letters, skip=yes)
    done = f"unregistered consumer {consumer} from {queue}"
    show_result(done, unregistered=True)


@command(
    "pgque seek orders billing 2026-05-24T18:00",
    "pgque seek orders billing earliest",
    "pgque seek orders billing latest --yes",
)
@click.argument("position", type=QueuePosition())
@click.option("--yes", is_flag=True, help="Skip events, which the consumer will never get.")
def seek(client: Client, queue: str, consumer: str, position: str, yes: bool) -> None:
    """Move CONSUMER of QUEUE to a POSITION: earliest, latest, a time or a tick's number.

    With a time, it gets all events committed since. Scheduled retries and dead letters stay.
    """
    sought = client.seek(queue, consumer, position, skip=yes)
    show_result(
        f"consumer {consumer} on {queue} stands at tick {sought.tick_id}: "
        f"{sought.skipped_events} events are skipped, "
        f"{sought.repeated_events} will be delivered again",
        tick_id=sought.tick_id,
        skipped_events=sought.skipped_events,
        repeated_events=sought.repeated_events,
    )


@command(
    "pgque assign orders billing production",
    "pgque assign orders billing production --location shop --asset sales/billing",
)
@click.option("--location", help="The code location; by default, the next one that consumes.")
@click.option("--asset", multiple=True, help="The key; by default, of the next one that consumes.")
def assign(
    client: Client,
    queue: str,
    consumer: str,
    deployment: str,
    location: str | None,
    asset: tuple[str, ...],
) -> None:
    """Move CONSUMER of QUEUE to the Dagster DEPLOYMENT, or the asset, that consumes from now on.

    On the embedded server, DEPLOYMENT is ''.
    """
    wanted = ConsumingAsset(deployment or None, location, tuple(sorted(asset)))
    earlier = client.run(move_to_deployment(queue, consumer, wanted))
    moved = f", moved from {earlier}" if earlier else ""
    show_result(
        f"consumer {consumer} on {queue} belongs to {wanted}{moved}",
        deployment=deployment,
        location=location,
        assets=list(asset),
        moved_from=earlier,
    )


@command("pgque release orders billing", "pgque release orders billing -y")
@click.option("-y", "--yes", is_flag=True, help="Release a live lease as well.")
def release(client: Client, queue: str, consumer: str, yes: bool) -> None:
    """Release the lease on the open batch of CONSUMER, so that it can be claimed at once.

    The batch stays open and no event is lost. If the owner of a live lease is still working, its
    ack is refused once another process has claimed the batch.
    """
    found = client.lease_info(queue, consumer)
    if found is None or found.owner is None or found.until is None:
        raise PgqueError(
            f"consumer {consumer} on {queue} has no lease on a batch",
            "`pgque status` shows all.",
        )
    if found.is_live and not yes:
        raise PgqueError(
            f"{found.owner} has a live lease on batch {found.batch_id} until {found.until:%F %T%z}",
            "If it is no longer running, or its work may be repeated, add --yes.",
        )
    client.run(release_batch(found.batch_id, found.owner, found.epoch))
    show_result(
        f"released the lease of {found.owner} on batch {found.batch_id}",
        batch=found.batch_id,
        owner=found.owner,
    )
