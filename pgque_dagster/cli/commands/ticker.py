"""`pgque ticker`: runs ticks and maintenance."""

import signal

import click

from ...client import Ticker
from ...client.running import stopping_on_signals
from ..app import command
from ..database import Database
from ..printing import announce_if_slow, show_result


@command("pgque ticker", "pgque ticker --once", "pgque ticker --once --force orders")
@click.option("--once", is_flag=True, help="Tick the queues that are due once, then exit.")
@click.option(
    "--force",
    "forced",
    multiple=True,
    metavar="QUEUE",
    help="With --once: tick this queue even if no tick is due. Repeatable.",
)
def ticker(database: Database, once: bool, forced: tuple[str, ...]) -> None:
    """Run ticks and maintenance of all queues until Ctrl-C or SIGTERM.

    Without ticks, consumers get no batches. One ticker per database is enough; a second one does
    no harm. If the database is unreachable, the ticker waits for it.
    """
    if forced and not once:
        raise click.UsageError("--force needs --once.")
    url = database.url
    with announce_if_slow("making the first tick"), database.client() as client:
        for queue in forced:
            client.force_next_tick(queue)
        # Fails at once on a wrong URL or a missing schema, where Ticker would wait and retry.
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
