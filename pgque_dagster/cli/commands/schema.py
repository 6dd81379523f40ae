"""The schema's life in a database: install, uninstall, version."""

import click

from ... import __version__, installer
from ..database import Database, pass_database
from ..examples import examples


@click.command(
    epilog=examples(
        "pgque install",
        "pgque --url postgresql://admin@db.example.com/shop install",
    ),
)
@pass_database
def install(database: Database) -> None:
    """Install the schema, or upgrade it to this package's version.

    Queues, events, positions and settings stay; running it again changes nothing.
    """
    before = installer.installed_version(database.url)
    installer.install(database.url)
    after = installer.installed_version(database.url)
    if before is None:
        click.echo(f"installed pgque {after}")
    elif before == after:
        click.echo(f"pgque {after} was installed, and is again; nothing was lost")
    else:
        click.echo(f"upgraded pgque from {before} to {after}")


@click.command(
    epilog=examples(
        "pgque uninstall",
        "pgque uninstall --force",
    ),
)
@click.option("--force", is_flag=True, help="Remove events that were not read, too.")
@pass_database
def uninstall(database: Database, force: bool) -> None:
    """Remove the schema with all queues and positions, and its jobs of pg_cron.

    Nothing of it comes back. While events are unread it refuses, unless with --force.
    """
    installer.uninstall(database.url, force=force)
    click.echo("removed pgque; its roles stay")


@click.command(
    epilog=examples(
        "pgque version",
    ),
)
@pass_database
def version(database: Database) -> None:
    """Show the version of this package and of the installed schema."""
    installed = installer.installed_version(database.url)
    click.echo(f"package {__version__}")
    click.echo(f"schema  {installed or 'not installed: run `pgque install`'}")
