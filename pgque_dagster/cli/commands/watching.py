"""What an operator watches: figures of the queues, and what is wrong with them."""

import click

from ...client import PgqueError
from ..database import Database, pass_database
from ..examples import examples
from ..tables import table


@click.command(
    epilog=examples(
        "pgque stats",
    ),
)
@pass_database
def stats(database: Database) -> None:
    """Show each queue's depth, oldest waiting event, rate, and dead letters."""
    with database.client() as client:
        queues = client.queue_stats()
    if not queues:
        click.echo("no queues: make one with `pgque create-queue NAME`")
        return
    rows = [
        (
            queue.queue,
            queue.depth,
            queue.oldest_message_age,
            queue.consumers,
            queue.events_per_second,
            queue.dead_letters,
            queue.rotation_age,
            "paused" if queue.ticker_paused else "running",
        )
        for queue in queues
    ]
    header = ("queue", "depth", "oldest", "consumers", "events/s", "dead letters")
    click.echo(table((*header, "rotated ago", "ticker"), rows))


@click.command(
    epilog=examples(
        "pgque health",
        "pgque health --all",
        "pgque health || alert 'a queue needs somebody'",
    ),
)
@click.option("--all", "show_all", is_flag=True, help="Show the checks that are well, too.")
@pass_database
def health(database: Database, show_all: bool) -> None:
    """Show what is wrong and what to do; fail when something is critical."""
    with database.client() as client:
        checks = client.health()
    shown = [check for check in checks if show_all or check.status != "ok"]
    if shown:
        rows = [(check.status, check.queue, check.check, check.detail) for check in shown]
        click.echo(table(("status", "queue", "check", "detail"), rows))
    else:
        click.echo(f"all {len(checks)} checks are well")
    critical = sum(check.status == "critical" for check in checks)
    if critical:
        raise PgqueError(f"{critical} of {len(checks)} checks are critical")
