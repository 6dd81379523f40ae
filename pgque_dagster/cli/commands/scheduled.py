"""Commands for scheduled events: list, cancel."""

import click

from ...client import PgqueError
from ..database import Database, pass_database
from ..output import examples, show_result, show_rows, wants_json
from ..tables import shortened

_TEXT_WIDTH = 60


@click.group(
    epilog=examples(
        "pgque scheduled list reminders",
        "pgque scheduled cancel 4503599627370496",
    ),
)
def scheduled() -> None:
    """List and cancel events that were sent with --at."""


@scheduled.command(
    "list",
    epilog=examples(
        "pgque scheduled list reminders --limit 500",
    ),
)
@click.argument("queue")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Maximum number to show.",
)
@pass_database
def list_(database: Database, queue: str, limit: int) -> None:
    """Show the scheduled events of QUEUE, the earliest first."""
    with database.client() as client:
        waiting = client.list_scheduled(queue, limit)
    width = None if wants_json() else _TEXT_WIDTH
    rows = [
        {
            "entry": entry.id,
            "deliver at": entry.deliver_at,
            "type": entry.type,
            "payload": shortened(entry.payload, width),
        }
        for entry in waiting
    ]
    show_rows(rows, f"queue {queue} has nothing scheduled")


@scheduled.command(
    epilog=examples(
        "pgque scheduled cancel 4503599627370496",
    ),
)
@click.argument("entry", type=int)
@pass_database
def cancel(database: Database, entry: int) -> None:
    """Cancel the scheduled event ENTRY if it is not delivered yet."""
    with database.client() as client:
        if not client.cancel_scheduled(entry):
            raise PgqueError(
                f"nothing is scheduled as entry {entry}",
                "It was delivered or cancelled; see `pgque scheduled list QUEUE`.",
            )
    show_result(f"cancelled entry {entry}", entry=entry, cancelled=True)
