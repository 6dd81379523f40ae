"""The command `pgque`, and how its subcommands are declared."""

import inspect
from collections.abc import Callable
from functools import wraps
from importlib.metadata import version
from typing import Any

import click

from .database import Database
from .errors import OneLineErrorGroup
from .named import url_of
from .printing import set_json

_HELP = """Queues in PostgreSQL, consumed batch by batch.

The database comes from --url or --database, then from PGQUE_URL, then from libpq's variables
(PGHOST, PGDATABASE, PGSERVICE). If none is set, pgque uses the project's embedded PostgreSQL. Its
data is in .pgque/ of the current folder, or of the nearest parent folder that has a server, up to
the root of the repository.

--database takes a NAME from a variable, such as PGQUE_URL_BILLING, or from the table
[tool.pgque.databases] of pyproject.toml in such a folder: billing = "postgresql://...".

\b
First steps:
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
  3    done, and health found something critical
  130  stopped by Ctrl-C
  141  the reader of the output went away
"""

Function = Callable[..., None]

limit_option = click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Maximum number to show.",
)


def _choose(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.ensure_object(Database).choose("--url", value)


def _choose_named(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.ensure_object(Database).choose("--database", url_of(value))


def _add_common_options(command: click.Command) -> None:
    """Adds the options that are allowed before or after the name of a command."""
    command.params += [
        click.Option(
            ["-d", "--url"],
            metavar="URL",
            expose_value=False,
            callback=_choose,
            help="Connection string or URI of the database. [env: PGQUE_URL, or PGHOST etc.]",
        ),
        click.Option(
            ["--database"],
            metavar="NAME",
            expose_value=False,
            callback=_choose_named,
            help="Database that pyproject.toml names. [env: PGQUE_URL_<NAME>]",
        ),
        click.Option(
            ["--json"],
            is_flag=True,
            expose_value=False,
            callback=set_json,
            help="Print JSON: durations in seconds, times in ISO 8601.",
        ),
    ]


@click.group(
    cls=OneLineErrorGroup,
    help=_HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(version("pgque-dagster"), prog_name="pgque")
@click.pass_context
def main(context: click.Context) -> None:
    """Creates the database object for the subcommands. `_HELP` is the help text."""
    context.ensure_object(Database)


_add_common_options(main)


def group(name: str, *examples: str) -> Callable[[Function], click.Group]:
    """Turns a function into a group of commands; its docstring is the help."""

    def declare(function: Function) -> click.Group:
        made: click.Group = main.group(name, epilog=_epilog(examples))(function)
        _add_common_options(made)
        return made

    return declare


def command(
    *examples: str, into: click.Group = main, **settings: Any
) -> Callable[[Function], click.Command]:
    """Turns a function into a command; its docstring is the help.

    The function gets a client as its parameter `client`, or the way to reach the database as
    `database`. Parameters that no decorator of click declares are strings that the command takes
    in their order.

    Args:
        examples: lines for the help text.
        into: the group of the command.
        settings: as for `click.command`.
    """

    def declare(function: Function) -> click.Command:
        parameters = list(inspect.signature(function).parameters)

        @wraps(function)
        def call(**values: Any) -> None:
            database = click.get_current_context().ensure_object(Database)
            if "client" in parameters:
                with database.client() as client:
                    function(client=client, **values)
            else:
                function(**values, **({"database": database} if "database" in parameters else {}))

        made: click.Command = into.command(epilog=_epilog(examples), **settings)(call)
        known = {"client", "database", *(each.name for each in made.params)}
        made.params[:0] = [click.Argument([each]) for each in parameters if each not in known]
        _add_common_options(made)
        return made

    return declare


def _epilog(examples: tuple[str, ...]) -> str:
    # `\b` keeps click from joining the lines.
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in examples)
