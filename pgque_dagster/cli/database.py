"""The database of a command: the given one, or the project's embedded server."""

import os

import click

from .. import installer
from ..client import Client
from ..embedded import EmbeddedPostgres
from .printing import announce_if_slow

# Each of these variables names a database or a server to libpq, which uses it if the URL does not.
_LIBPQ_VARIABLES = ("PGSERVICE", "PGHOST", "PGHOSTADDR", "PGDATABASE")


class Database:
    """The database of a command: the chosen one, the environment's, or the embedded one."""

    def __init__(self) -> None:
        self._chosen_by: str | None = None
        self._url: str | None = os.environ.get("PGQUE_URL") or None
        if self._url is None and any(map(os.environ.get, _LIBPQ_VARIABLES)):
            self._url = ""

    def choose(self, option: str, url: str) -> None:
        """Uses the database that an option names, unless another option already named one."""
        if self._chosen_by not in (None, option):
            raise click.UsageError("both --url and --database name a database: leave one out")
        self._chosen_by, self._url = option, url

    @property
    def url(self) -> str:
        """Returns the connection string. Starts the embedded server if no database is named.

        Raises:
            click.UsageError: if PGQUE_URL is empty, for example because another variable was unset.
        """
        if self._url is None:
            if os.environ.get("PGQUE_URL") == "":
                raise click.UsageError(
                    "PGQUE_URL is empty: set it to the URL of a server, or unset it to use the"
                    " embedded one"
                )
            self._url = _start_embedded()
        return self._url

    def check_exists(self) -> None:
        """Refuses to create an embedded server, for a command that inspects an existing one.

        Raises:
            click.UsageError: if no database is named, and the project has no embedded server.
        """
        is_named = self._url is not None or "PGQUE_URL" in os.environ
        if not is_named and not EmbeddedPostgres().has_data:
            raise click.UsageError(
                "no database is named, and this project has no embedded PostgreSQL: set PGQUE_URL"
                " or give --url"
            )

    def client(self) -> Client:
        """Returns a client that is connected to it."""
        return Client(self.url)


def start_embedded() -> EmbeddedPostgres:
    """Starts the embedded server of the project, and reports it if it is new.

    It stops with this process, unless other processes use it at that time.
    """
    server = EmbeddedPostgres()
    is_new = not server.has_data
    with announce_if_slow(f"starting the embedded PostgreSQL in {server.data_dir}"):
        server.start()
    if is_new:
        click.echo(
            f"pgque: made an embedded PostgreSQL in {server.data_dir}, as no folder of this project"
            " has one; to use another project's, set PGQUE_HOME or work in its folder",
            err=True,
        )
    return server


def _start_embedded() -> str:
    server = start_embedded()
    click.echo(
        f"pgque: using the embedded PostgreSQL in {server.data_dir}"
        " (no --url, no PGQUE_URL, no PGHOST)",
        err=True,
    )
    # On the embedded server, nothing else installs the schema.
    with announce_if_slow("installing the schema"):
        is_new = installer.install_if_missing(server.url)
    if is_new:
        click.echo("pgque: installed the schema", err=True)
    return server.url
