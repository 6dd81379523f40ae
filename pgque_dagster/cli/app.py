"""The command `pgque` and its subcommands."""

import click

from .. import __version__
from .commands import (
    consumers,
    dead_letters,
    diagnosis,
    embedded,
    metrics,
    queues,
    reading,
    running,
    schema,
    sending,
    status,
)
from .database import Database
from .errors import OneLineErrorGroup
from .options import add_common_options

_HELP = """Queues in PostgreSQL, consumed batch by batch.

The database comes from --url, else from PGQUE_URL, else from the variables of libpq (PGHOST,
PGDATABASE, PGSERVICE). Without any of them the embedded PostgreSQL of the project is used. Its data
is in .pgque/ of the current folder, or of the nearest parent folder that has a server, up to the
root of the repository.

\b
A first walk:
  pgque install
  pgque create-queue orders
  pgque register orders billing
  pgque send orders '{"id": 1, "total": 9.5}'
  pgque ticker --once --force orders
  pgque status

\b
Exit codes:
  0    done
  1    failed; one line on stderr says why
  2    wrong arguments
  3    done, and the answer is no: health found something critical, or
       drain waited in vain
  130  stopped by Ctrl-C
  141  the reader of the output went away
"""


@click.group(
    cls=OneLineErrorGroup,
    help=_HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="pgque")
@click.pass_context
def main(context: click.Context) -> None:
    """Makes the database for the subcommands. `_HELP` is the help text."""
    context.ensure_object(Database)


for _command in (
    schema.install,
    schema.uninstall,
    queues.create_queue,
    queues.configure,
    queues.drop_queue,
    queues.pause,
    queues.resume,
    consumers.register,
    consumers.unregister,
    consumers.seek,
    consumers.assign,
    consumers.release,
    consumers.drain,
    status.status,
    sending.send,
    reading.peek,
    running.ticker,
    dead_letters.dead_letters,
    diagnosis.health,
    metrics.metrics,
    embedded.embedded,
):
    main.add_command(_command)
add_common_options(main)
