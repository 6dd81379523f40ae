"""Dead letters, the events that consumers gave up: list, replay, purge."""

import re
from datetime import timedelta
from typing import Any

import click

from pgque_dagster.client import PgqueError

from .database import Database, pass_database
from .examples import examples
from .tables import shortened, table

_TEXT_WIDTH = 60
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Age(click.ParamType[timedelta]):
    """A duration as a number and a unit: `90s`, `15m`, `12h`, `30d`."""

    name = "age"

    def convert(self, value: Any, param: Any, ctx: Any) -> timedelta:
        """Reads the text."""
        if isinstance(value, timedelta):
            return value
        found = re.fullmatch(r"(\d{1,9})([smhd])", value.strip())
        if found is None:
            self.fail(f"{value!r} is no age; write 90s, 15m, 12h or 30d", param, ctx)
        return timedelta(**{_UNITS[found[2]]: int(found[1])})


@click.group(
    "dead-letters",
    epilog=examples(
        "pgque dead-letters list orders",
        "pgque dead-letters replay orders",
        "pgque dead-letters purge orders --older-than 30d",
    ),
)
def dead_letters() -> None:
    """Look after events that consumers gave up."""


@dead_letters.command(
    "list",
    epilog=examples(
        "pgque dead-letters list orders",
        "pgque dead-letters list orders --limit 500 --full",
    ),
)
@click.argument("queue")
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many at most."
)
@click.option("--full", is_flag=True, help="Show payloads and reasons whole.")
@pass_database
def list_(database: Database, queue: str, limit: int, full: bool) -> None:
    """Show the newest dead letters of QUEUE."""
    with database.client() as client:
        letters = client.dead_letters(queue, limit)
    if not letters:
        click.echo(f"queue {queue} has no dead letters")
        return
    width = None if full else _TEXT_WIDTH
    rows = [
        (
            letter.id,
            f"{letter.time:%F %T}",
            letter.event_id,
            letter.type,
            shortened(letter.reason, width),
            shortened(letter.payload, width),
        )
        for letter in letters
    ]
    click.echo(table(("id", "time", "event", "type", "reason", "payload"), rows))


@dead_letters.command(
    epilog=examples(
        "pgque dead-letters replay orders",
        "pgque dead-letters replay --id 17 --id 18",
    ),
)
@click.argument("queue", required=False)
@click.option("--id", "ids", type=int, multiple=True, help="Only this one. May be given again.")
@pass_database
def replay(database: Database, queue: str | None, ids: tuple[int, ...]) -> None:
    """Send all dead letters of QUEUE, or those of --id, to their consumers again."""
    if (queue is None) == (not ids):
        raise click.UsageError("Give a queue, or one or more --id.")
    with database.client() as client:
        if queue is None:
            with client.transaction():
                for dead_letter_id in ids:
                    client.replay_dead_letter(dead_letter_id)
            click.echo(f"dead letters replayed: {len(ids)}")
            return
        replayed, failed, first_error = client.replay_dead_letters(queue)
    click.echo(f"dead letters replayed: {replayed}")
    if failed:
        raise PgqueError(f"{failed} dead letters stay, the first because: {first_error}")


@dead_letters.command(
    epilog=examples(
        "pgque dead-letters purge orders",
        "pgque dead-letters purge orders --older-than 0s",
    ),
)
@click.argument("queue")
@click.option(
    "--older-than",
    type=Age(),
    default="30d",
    show_default=True,
    help="Only those given up so long ago: 90s, 15m, 12h, 30d; 0s for all.",
)
@pass_database
def purge(database: Database, queue: str, older_than: timedelta) -> None:
    """Delete old dead letters of QUEUE."""
    with database.client() as client:
        count = client.purge_dead_letters(queue, older_than)
    click.echo(f"dead letters purged: {count}")
