"""Commands for the schema: install, uninstall, version."""

import click

from ... import __version__, installer
from ..database import Database, pass_database
from ..examples import examples
from ..output import show_result


@click.command(
    epilog=examples(
        "pgque install",
        "pgque --url postgresql://admin@db.example.com/shop install",
    ),
)
@pass_database
def install(database: Database) -> None:
    """Install the schema, or upgrade it to this package's version.

    Queues, events, positions and settings are kept. Running it again changes nothing.
    """
    before = installer.installed_version(database.url)
    installer.install(database.url)
    after = installer.installed_version(database.url)
    if before is None:
        done = f"installed pgque {after}"
    elif before == after:
        done = f"pgque {after} is installed; reinstalled it, nothing was lost"
    else:
        done = f"upgraded pgque from {before} to {after}"
    show_result(done, before=before, version=after)


@click.command(
    epilog=examples(
        "pgque uninstall",
        "pgque uninstall --force",
    ),
)
@click.option("--force", is_flag=True, help="Remove unread events, too.")
@pass_database
def uninstall(database: Database, force: bool) -> None:
    """Remove the schema with all queues and positions, and its pg_cron jobs.

    This cannot be undone. It is refused while events are unread, unless --force is given.
    """
    installer.uninstall(database.url, force=force)
    show_result("removed pgque; its roles are kept", uninstalled=True)


@click.command(
    epilog=examples(
        "pgque version",
    ),
)
@pass_database
def version(database: Database) -> None:
    """Show the version of this package and of the installed schema."""
    installed = installer.installed_version(database.url)
    show_result(
        f"package {__version__}\nschema  {installed or 'not installed: run `pgque install`'}",
        package=__version__,
        schema=installed,
    )
