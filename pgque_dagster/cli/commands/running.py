"""Commands that run ticks, maintenance and batches."""

import signal

import click

from ...client import Ticker
from ...client.running import stopping_on_signals
from ..database import Database, pass_database
from ..output import announce_if_slow, examples, show_result


@click.command(
    epilog=examples(
        "pgque start",
    ),
)
@pass_database
def start(database: Database) -> None:
    """Schedule ticks and maintenance of all queues in pg_cron. Run it once.

    Without pg_cron, run `pgque ticker`.
    """
    with database.client() as client:
        client.start()
    show_result("pg_cron runs ticks and maintenance; it begins within a minute", scheduled=True)


@click.command(
    epilog=examples(
        "pgque stop",
    ),
)
@pass_database
def stop(database: Database) -> None:
    """Remove the jobs of `pgque start` from pg_cron."""
    with database.client() as client:
        client.stop()
    show_result("pg_cron no longer runs ticks", scheduled=False)


@click.command(
    epilog=examples(
        "pgque ticker",
        "pgque ticker --once",
        "pgque ticker --once --force orders",
    ),
)
@click.option("--once", is_flag=True, help="Tick the queues that are due once, then exit.")
@click.option(
    "--force",
    "forced",
    multiple=True,
    metavar="QUEUE",
    help="With --once: tick this queue even if no tick is due. Repeatable.",
)
@pass_database
def ticker(database: Database, once: bool, forced: tuple[str, ...]) -> None:
    """Run ticks and maintenance of all queues until Ctrl-C or SIGTERM.

    Without ticks no consumer gets a batch. One ticker per database is enough; a second one does no
    harm. If the database is unreachable, the ticker waits for it.
    """
    if forced and not once:
        raise click.UsageError("--force needs --once.")
    url = database.url
    with announce_if_slow("making the first tick"), database.client() as client:
        for queue in forced:
            client.force_next_tick(queue)
        # Fails at once on a wrong URL or a missing schema; Ticker would wait and retry.
        count = client.ticker()
    if once:
        show_result(f"queues ticked: {count}", ticked=count)
        return
    runner = Ticker(url)
    with stopping_on_signals(runner.stop) as received:
        click.echo("ticking until Ctrl-C", err=True)
        runner.run()
    if signal.SIGINT in received:
        raise KeyboardInterrupt


@click.command(
    epilog=examples(
        "pgque maint",
    ),
)
@pass_database
def maint(database: Database) -> None:
    """Rotate event tables, deliver due retries, compact positions and ticks, once.

    `pgque ticker` does this regularly.
    """
    with database.client() as client:
        count = client.maint()
    show_result(f"operations done: {count}", operations=count)
