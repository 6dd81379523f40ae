"""Expected errors end the command with one line on stderr and no stack trace."""

import io
import logging
import re
import sys
from typing import Any

import click
import psycopg

from ..client import OlderInstalled, PgqueError, QueueInUse, SchemaMissing, SkipsEvents
from ..client.errors import sentences

_INTERRUPTED = 130  # The exit code that shells use after Ctrl-C.
_BROKEN_PIPE = 141
NO = 3
"""The exit code of a command that worked and found a problem."""

# Hints for the shell: commands instead of the SQL in the server's hints.
_WAYS_OUT: dict[type[PgqueError], str] = {
    QueueInUse: "Unregister, replay, purge or cancel them, or add --force, which deletes all.",
    SkipsEvents: "If you want that, add --yes.",
    SchemaMissing: "Run `pgque install`.",
    OlderInstalled: "Run `pgque install`: queues and events stay.",
}
_CREATE = re.compile(r"with: select pgque\.create_queue\('(.*)'\);")

# `:secret@` in a URI, `password=secret` in a URI's query or in a connection string.
_SECRETS = re.compile(
    r"://[^\s/@:]*:(?P<uri>[^\s]*)@|password\s*=\s*(?P<key>'[^']*'|[^\s&]+)", re.I
)


class CommandFailed(click.ClickException):
    """The command failed. click prints the message and exits with 1."""

    def show(self, file: Any = None) -> None:
        """Prints `pgque: ` and the message as one line on stderr."""
        click.echo(f"pgque: {self.message}", err=True)


class OneLineErrorGroup(click.Group):
    """A command group that raises expected errors as `CommandFailed`."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the command. The output of --help may fail outside `invoke`."""
        if isinstance(sys.stdout, io.TextIOWrapper):
            # The terminal's encoding may lack a character of an event.
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            CommandFailed(one_line(error)).show()
            sys.exit(1)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the subcommand."""
        logging.basicConfig(format="pgque: %(message)s")
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(_INTERRUPTED)
        except BrokenPipeError:
            ctx.exit(_BROKEN_PIPE)
        except (PgqueError, psycopg.Error, OSError) as error:
            raise CommandFailed(without_passwords(one_line(error))) from error


def one_line(error: Exception) -> str:
    """Returns the problem and the solution on one line."""
    if isinstance(error, PgqueError):
        hint = _CREATE.sub(r"with `pgque create-queue \1`.", error.hint)
        text = sentences(str(error.args[0]), _WAYS_OUT.get(type(error), hint))
    elif isinstance(error, psycopg.Error):
        text = error.diag.message_primary or str(error)
    else:
        text = str(error)
    return " ".join(text.split())


def without_passwords(text: str) -> str:
    """Masks the passwords of connection strings in a text."""

    def mask(found: re.Match[str]) -> str:
        secret = found["uri"] if found["uri"] is not None else found["key"]
        return found[0].replace(secret, "***") if secret else found[0]

    return _SECRETS.sub(mask, text)
