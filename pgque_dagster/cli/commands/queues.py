"""Commands for queues and consumers: create, drop, list."""

import click

from ...client import Client, PermissionDenied, calls
from ..database import Database, pass_database
from ..examples import examples
from ..tables import table


@click.command(
    "create-queue",
    epilog=examples(
        "pgque create-queue orders",
        "pgque create-queue orders --set ticker_max_lag='1 second' --set max_retries=3",
    ),
)
@click.argument("queue")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter of the queue, such as ticker_max_lag='1 second'. Repeatable.",
)
@pass_database
def create_queue(database: Database, queue: str, settings: tuple[str, ...]) -> None:
    """Create QUEUE (name of 1 to 57 bytes). An existing queue only gets the new settings."""
    parameters = dict(_split(setting) for setting in settings)
    with database.client() as client, client.transaction():
        created = client.create_queue(queue)
        client.configure_queue(queue, **parameters)
    click.echo(f"created queue {queue}" if created else f"queue {queue} existed")


def _split(setting: str) -> tuple[str, str]:
    name, equals, value = setting.partition("=")
    if not equals:
        raise click.BadParameter(f"{setting!r} is not NAME=VALUE", param_hint="--set")
    return name, value


@click.command(
    "drop-queue",
    epilog=examples(
        "pgque drop-queue orders",
        "pgque drop-queue orders --force",
    ),
)
@click.argument("queue")
@click.option("--force", is_flag=True, help="Drop the queue even if consumers are registered.")
@pass_database
def drop_queue(database: Database, queue: str, force: bool) -> None:
    """Drop QUEUE with all its events."""
    with database.client() as client:
        client.drop_queue(queue, force=force)
    click.echo(f"dropped queue {queue}")


@click.command(
    epilog=examples(
        "pgque register orders billing",
    ),
)
@click.argument("queue")
@click.argument("consumer")
@pass_database
def register(database: Database, queue: str, consumer: str) -> None:
    """Register CONSUMER on QUEUE. It receives the events sent from now on."""
    with database.client() as client:
        new = client.register_consumer(queue, consumer)
    click.echo(f"{'registered' if new else 'there was already'} consumer {consumer} on {queue}")


@click.command(
    epilog=examples(
        "pgque unregister orders billing",
        "pgque unregister orders billing --keep-dead-letters",
    ),
)
@click.argument("queue")
@click.argument("consumer")
@click.option(
    "--keep-dead-letters",
    is_flag=True,
    help="Keep the dead letters, to inspect or replay them later.",
)
@pass_database
def unregister(database: Database, queue: str, consumer: str, keep_dead_letters: bool) -> None:
    """Unregister CONSUMER from QUEUE and delete its retries and dead letters."""
    with database.client() as client:
        client.unregister_consumer(queue, consumer, keep_dead_letters=keep_dead_letters)
    click.echo(f"unregistered consumer {consumer} from {queue}")


@click.command(
    epilog=examples(
        "pgque assign orders billing production",
    ),
)
@click.argument("queue")
@click.argument("consumer")
@click.argument("deployment")
@pass_database
def assign(database: Database, queue: str, consumer: str, deployment: str) -> None:
    """Move CONSUMER of QUEUE to the DEPLOYMENT of Dagster that consumes from now on."""
    with database.client() as client:
        earlier = client.run(calls.consumers.move_to_deployment(queue, consumer, deployment))
    moved = f", moved from {earlier}" if earlier else ""
    click.echo(f"consumer {consumer} on {queue} belongs to deployment {deployment}{moved}")


@click.command(
    epilog=examples(
        "pgque queues",
    ),
)
@pass_database
def queues(database: Database) -> None:
    """List the queues: last tick, its age, events since then, events per second."""
    with database.client() as client:
        click.echo(_queue_table(client))


@click.command(
    epilog=examples(
        "pgque consumers",
        "pgque consumers orders",
    ),
)
@click.argument("queue", required=False)
@pass_database
def consumers(database: Database, queue: str | None) -> None:
    """List the consumers of QUEUE, or of all queues: lag, open batch, pending events."""
    with database.client() as client:
        click.echo(_consumer_table(client, queue))


@click.command(
    epilog=examples(
        "pgque status",
        'watch -n 2 pgque --url "$PGQUE_URL" status',
    ),
)
@pass_database
def status(database: Database) -> None:
    """Show components, queues, consumers and dead letters in one view."""
    with database.client() as client:
        click.echo(_part_table(client))
        click.echo()
        click.echo(_queue_table(client))
        click.echo()
        click.echo(_consumer_table(client, None))
        click.echo()
        click.echo(_dead_letter_table(client))


def _part_table(client: Client) -> str:
    try:
        parts = client.status()
    except PermissionDenied:
        return "components are shown to pgque_admin only"
    rows = [(part.component, part.status, part.detail) for part in parts]
    return table(("component", "status", "detail"), rows)


def _queue_table(client: Client) -> str:
    rows = [
        (q.name, q.last_tick_id, q.ticker_lag, q.new_events, q.events_per_second)
        for q in client.queues()
    ]
    if not rows:
        return "no queues: create one with `pgque create-queue NAME`"
    return table(("queue", "last tick", "tick age", "new events", "events/s"), rows)


def _consumer_table(client: Client, queue: str | None) -> str:
    rows = [
        (c.queue, c.name, c.pending_events, c.lag, c.batch_id, c.last_seen)
        for c in client.consumers(queue)
    ]
    if not rows:
        return "no consumers: add one with `pgque register QUEUE CONSUMER`"
    return table(("queue", "consumer", "pending", "lag", "open batch", "seen ago"), rows)


def _dead_letter_table(client: Client) -> str:
    rows = [
        (queue.name, letters.consumer, letters.count, letters.reason, f"{letters.oldest:%F %T%z}")
        for queue in client.queues()
        for letters in client.dead_letter_counts(queue.name)
    ]
    if not rows:
        return "no dead letters"
    return table(("queue", "consumer", "dead letters", "reason", "oldest"), rows)
