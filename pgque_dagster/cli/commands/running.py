"""What keeps queues going where no scheduler does: ticks and maintenance."""

import signal
from importlib import import_module
from importlib.util import find_spec
from types import FrameType

import click

from ...client import Ticker
from ..database import Database, pass_database
from ..examples import examples
from ..waiting import told_if_slow


@click.command(
    epilog=examples(
        "pgque start",
    ),
)
@pass_database
def start(database: Database) -> None:
    """Have pg_cron tick all queues and maintain them; once is enough.

    Without pg_cron, run `pgque ticker`.
    """
    with database.client() as client:
        client.start()
    click.echo("pg_cron ticks and maintains; it begins within a minute")


@click.command(
    epilog=examples(
        "pgque stop",
    ),
)
@pass_database
def stop(database: Database) -> None:
    """Take the jobs of `pgque start` back."""
    with database.client() as client:
        client.stop()
    click.echo("pg_cron ticks no more")


@click.command(
    epilog=examples(
        "pgque ticker",
        "pgque ticker --once",
        "pgque ticker --once --force orders",
    ),
)
@click.option("--once", is_flag=True, help="Tick the queues that are due once, and end.")
@click.option(
    "--force",
    "forced",
    multiple=True,
    metavar="QUEUE",
    help="With --once: tick this queue, due or not. May be given again.",
)
@pass_database
def ticker(database: Database, once: bool, forced: tuple[str, ...]) -> None:
    """Tick all queues, with maintenance now and then, until Ctrl-C or SIGTERM.

    Without ticks no consumer gets a batch. Run one ticker for a database; a second one does no
    harm. A database that goes away is waited for.
    """
    if forced and not once:
        raise click.UsageError("--force makes one tick: give it with --once.")
    url = database.url
    with told_if_slow("making the first tick"), database.client() as client:
        for queue in forced:
            client.force_next_tick(queue)
        # Tells a wrong URL or a missing schema at once, and not after a wait for better times.
        count = client.ticker()
    if once:
        click.echo(f"queues ticked: {count}")
        return
    ended_by = _run(Ticker(url))
    if ended_by == signal.SIGINT:
        raise KeyboardInterrupt


def _run(ticker: Ticker) -> int | None:
    """Ticks until a signal; returns which."""
    received: int | None = None

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received = number
        ticker.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        click.echo("ticking until Ctrl-C", err=True)
        ticker.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return received


@click.command(
    epilog=examples(
        "pgque maint",
    ),
)
@pass_database
def maint(database: Database) -> None:
    """Rotate event tables, deliver retries that are due, compact positions and ticks, once.

    `pgque ticker` does this by itself.
    """
    with database.client() as client:
        click.echo(f"things done: {client.maint()}")


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    add_help_option=False,
)
@click.pass_context
def worker(context: click.Context) -> None:
    """Run batches as they come, in one warm process, each as a run of Dagster.

    The database is that of the project's PgqueResource. `pgque worker --help` has the options.
    """
    if find_spec("dagster") is None:
        raise click.ClickException(
            "the worker needs Dagster: pip install 'pgque-dagster[spark,dagster]'"
        )
    with told_if_slow("loading Dagster and Spark"):
        # By its name: this package needs no Dagster, and the module does.
        command = import_module("pgque_dagster.worker.command").main
    command(context.args, prog_name="pgque worker")
