"""Commands for the embedded PostgreSQL of a project: start, psql."""

import os
import signal
import subprocess
import threading
from contextlib import ExitStack

import click
from psycopg.conninfo import conninfo_to_dict

from ...client import PgqueError
from ...client.running import stopping_on_signals
from ..app import command, group
from ..database import start_embedded
from ..printing import show_result


@group("embedded", "pgque embedded start", "pgque embedded psql")
def embedded() -> None:
    """Run the embedded PostgreSQL of this folder's project.

    Commands that name no database start it automatically. It stops when no other process uses it,
    even if its users were killed.
    """


@command("pgque embedded start", into=embedded)
def start() -> None:
    """Keep the server running until Ctrl-C or SIGTERM, and print its URL."""
    server = start_embedded()
    ended = threading.Event()
    with ExitStack() as stack:
        stack.callback(server.stop)
        stack.enter_context(stopping_on_signals(ended.set, (signal.SIGTERM,)))
        show_result(f"export PGQUE_URL='{server.url}'", url=server.url)
        click.echo("pgque: running until Ctrl-C", err=True)
        while not ended.wait(1):
            if not server.is_running:
                raise PgqueError(
                    f"the embedded PostgreSQL in {server.data_dir} ended",
                    f"Read {server.log_file}, then run `pgque embedded start` again.",
                )


@command(
    "pgque embedded psql",
    'pgque embedded psql -c "select pgque.version()"',
    into=embedded,
    context_settings={"ignore_unknown_options": True},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def psql(arguments: tuple[str, ...]) -> None:
    """Open psql on the server, with psql's own arguments, such as `-d NAME` for a database."""
    with start_embedded() as server:
        parts = {"PGDATABASE": "dbname", "PGHOST": "host", "PGPORT": "port", "PGUSER": "user"}
        known = conninfo_to_dict(server.url)
        given = {name: str(known[part]) for name, part in parts.items() if part in known}
        program = [str(server.binary("psql")), *arguments]
        # A Ctrl-C is for psql, in which it ends a statement.
        before = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            done = subprocess.run(program, env={**os.environ, **given}, check=False)
        finally:
            signal.signal(signal.SIGINT, before)
    click.get_current_context().exit(done.returncode)


# All options belong to psql, whose -d is not the -d of pgque.
psql.params = [each for each in psql.params if each.name == "arguments"]
