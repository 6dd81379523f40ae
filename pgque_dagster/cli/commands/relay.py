"""`pgque relay`: captures tables from the WAL."""

import signal

import click

from ...client.relay.relay import Relay
from ...client.relay.setup import begin_relay, end_relay
from ...client.relaying import Relaying
from ...client.running import stopping_on_signals
from ..app import command
from ..database import Database
from ..printing import announce_if_slow, show_result


@command("pgque relay shop", "pgque capture public.orders shop", "pgque relay shop --drop")
@click.option("--drop", is_flag=True, help="End it: drop the slot and the publication.")
def relay(database: Database, queue: str, drop: bool) -> None:
    """Capture the tables of QUEUE from the WAL, and move their changes until Ctrl-C or SIGTERM.

    From its first start on, tables are captured into QUEUE without triggers, and only a relay makes
    the ticks of QUEUE. The server needs wal_level = logical. The role needs pgque_admin,
    REPLICATION and, to capture, to own the tables. A connection pooler is not enough. While no
    relay runs, the server keeps the WAL. After a stop or a crash, the next start loses nothing and
    repeats nothing. If a second one is started, it waits. If a captured table loses its primary
    key, PostgreSQL refuses its updates and deletes until the table is uncaptured.
    """
    url = database.url
    if drop:
        end_relay(url, queue)
        show_result(f"dropped the relay of queue {queue}", queue=queue)
        return
    with announce_if_slow("waiting for the transactions that are open"):
        begin_relay(url, queue)
        with Relay.of(url, queue) as first:
            first.move()
    runner = Relaying(url, queue)
    with stopping_on_signals(runner.stop) as received:
        click.echo(f"relaying into {queue} until Ctrl-C", err=True)
        runner.run()
    if signal.SIGINT in received:
        raise KeyboardInterrupt
