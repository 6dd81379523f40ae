"""The command `pgque`: its global option and its subcommands."""

import click

from .. import __version__
from .commands import dead_letters, queues, running, scheduled, schema, sending, watching
from .database import Database
from .errors import OneLineErrorGroup

_HELP = """Queues in PostgreSQL, consumed batch by batch.

The database comes from --url, else from the environment variable PGQUE_URL. Without either, the
embedded PostgreSQL of the project is used. Its data is in .pgque/ of the current folder, or of the
nearest parent folder that has a server, up to the root of the repository.

\b
A first walk:
  pgque install
  pgque create-queue orders
  pgque register orders billing
  pgque send orders '{"id": 1, "total": 9.5}'
  pgque ticker --once --force orders
  pgque status
"""


@click.group(
    cls=OneLineErrorGroup, help=_HELP, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option(
    "-d",
    "--url",
    envvar="PGQUE_URL",
    metavar="URL",
    help="Connection string or URI of the database. [env: PGQUE_URL]",
)
@click.version_option(__version__, prog_name="pgque")
@click.pass_context
def main(context: click.Context, url: str | None) -> None:
    """Stores the database for the subcommands. `_HELP` is the help text."""
    context.obj = Database(url)


for _command in (
    schema.install,
    schema.uninstall,
    schema.version,
    queues.create_queue,
    queues.drop_queue,
    queues.register,
    queues.unregister,
    queues.assign,
    queues.queues,
    queues.consumers,
    queues.status,
    sending.send,
    scheduled.scheduled,
    running.start,
    running.stop,
    running.ticker,
    running.maint,
    running.worker,
    dead_letters.dead_letters,
    watching.stats,
    watching.health,
):
    main.add_command(_command)
main.add_command(dead_letters.dead_letters, "dlq")
