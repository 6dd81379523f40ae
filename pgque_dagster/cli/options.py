"""Options that each command takes, so that they may stand before or after its name."""

import click

from .database import Database
from .output import set_json


def _choose(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.ensure_object(Database).choose(value)


def _options() -> list[click.Option]:
    return [
        click.Option(
            ["-d", "--url"],
            metavar="URL",
            expose_value=False,
            callback=_choose,
            help="Connection string or URI of the database. [env: PGQUE_URL, or PGHOST etc.]",
        ),
        click.Option(
            ["--json"],
            is_flag=True,
            expose_value=False,
            callback=set_json,
            help="Print JSON: durations in seconds, times in ISO 8601.",
        ),
    ]


def add_common_options(command: click.Command) -> None:
    """Adds the options to a command, and to each command of a group.

    Not to one that hands all its arguments on.
    """
    if not command.ignore_unknown_options:
        command.params += _options()
    if isinstance(command, click.Group):
        for each in command.commands.values():
            add_common_options(each)
