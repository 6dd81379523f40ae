"""Commands for queues: create, configure, drop, pause, resume."""

import click

from ...client import Client
from ..app import command
from ..printing import show_result


@command("pgque create-queue orders")
def create_queue(client: Client, queue: str) -> None:
    """Create QUEUE (name of 1 to 57 bytes). An existing queue stays as it is."""
    created = client.create_queue(queue)
    show_result(
        f"created queue {queue}" if created else f"queue {queue} already exists", created=created
    )


@command(
    "pgque configure orders ticker_max_lag='1 second'",
    "pgque configure orders retention='7 days' max_retries=3",
    "pgque configure orders retention=",
)
@click.argument("settings", nargs=-1, required=True, metavar="NAME=VALUE...")
def configure(client: Client, queue: str, settings: tuple[str, ...]) -> None:
    """Set parameters of QUEUE, all or none. NAME= resets one to its default.

    If NAME is unknown, the error lists all parameters; docs/reference.md describes them.
    """
    parameters = {name: value or None for name, value in map(_split, settings)}
    client.configure_queue(queue, **parameters)
    show_result(f"configured queue {queue}", configured=parameters)


def _split(setting: str) -> tuple[str, str]:
    name, equals, value = setting.partition("=")
    if not equals:
        raise click.BadParameter(f"{setting!r} is not NAME=VALUE")
    return name, value


@command("pgque drop-queue orders", "pgque drop-queue orders --force")
@click.option(
    "--force",
    is_flag=True,
    help="Also delete its dead letters and scheduled events, and unregister its consumers.",
)
def drop_queue(client: Client, queue: str, force: bool) -> None:
    """Drop QUEUE with all its events.

    Refused while QUEUE has consumers, dead letters or scheduled events, unless --force is given.
    """
    client.drop_queue(queue, force=force)
    show_result(f"dropped queue {queue}", dropped=True)


@command("pgque pause orders")
def pause(client: Client, queue: str) -> None:
    """Stop the ticks of QUEUE: it still accepts events, but consumers get no new batch."""
    client.pause_queue(queue)
    done = f"paused queue {queue}; `pgque resume {queue}` resumes it"
    show_result(done, ticker="paused")


@command("pgque resume orders")
def resume(client: Client, queue: str) -> None:
    """Resume the ticks of QUEUE."""
    client.resume_queue(queue)
    show_result(f"resumed queue {queue}", ticker="not paused")
