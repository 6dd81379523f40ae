"""Commands for the schema: install, uninstall."""

import click

from ... import installer
from ...client import UnreadEvents
from ..app import command
from ..database import Database
from ..printing import show_result


@command(
    "pgque install",
    "pgque --url postgresql://admin@db.example.com/shop install",
    "pgque install --with postgremq",
)
@click.option(
    "--with",
    "addons",
    multiple=True,
    type=click.Choice(installer.ADDONS),
    help="An add-on to install as well; repeatable. Installed add-ons are always upgraded.",
)
def install(database: Database, addons: tuple[str, ...]) -> None:
    """Install the schema, or upgrade it to this package's version.

    Queues, events, positions and settings are kept. Running it again changes nothing.
    """
    with installer.as_owner(database.url):
        before = installer.installed_version(database.url)
    installer.install(database.url, addons)
    after = installer.installed_version(database.url)
    if before is None:
        done = f"installed pgque {after}"
    elif before == after:
        done = f"pgque {after} is installed; reinstalled it, nothing was lost"
    else:
        done = f"upgraded pgque from {before} to {after}"
    found = sorted(installer.installed_addons(database.url))
    with_addons = f", with {', '.join(found)}" if found else ""
    show_result(f"{done}{with_addons}", before=before, version=after, addons=found)


@command(
    "pgque uninstall",
    "pgque uninstall --force",
    "pgque uninstall --addon postgremq",
    "pgque uninstall --addon qgres --force",
)
@click.option("--force", is_flag=True, help="Remove unread events and dead letters as well.")
@click.option("--addon", type=click.Choice(installer.ADDONS), help="Remove only this add-on.")
def uninstall(database: Database, force: bool, addon: str | None) -> None:
    """Remove the schema with all queues and positions, its add-ons and its pg_cron jobs.

    This cannot be undone. Refused while there are unread events or dead letters, unless --force is
    given.
    """
    try:
        installer.uninstall(database.url, force=force, addon=addon)
    except UnreadEvents as error:
        raise UnreadEvents(str(error.args[0]), _way_out(addon)) from error
    show_result(f"removed {addon or 'pgque'}; its roles are kept", uninstalled=True)


def _way_out(addon: str | None) -> str:
    if addon is None:
        return (
            "Let the consumers finish, replay or purge dead letters, or run `pgque uninstall "
            "--force`, which removes all queues and add-ons with their events."
        )
    first = "Drop or replace them" if addon == "pgq" else "Let the consumers finish"
    return f"{first}, or run `pgque uninstall --addon {addon} --force`, which loses them."
