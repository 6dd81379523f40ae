"""Commands for dead letters: list, show, add, replay, purge."""

from datetime import timedelta

import click

from ...client import Client, PgqueError
from ...client.dead_letters import exported
from ..app import command, group, limit_option
from ..printing import as_table, shortened, show_result, show_rows, to_json, wants_json
from ..times import Age

_ID = click.IntRange(1, 2**63 - 1)


@group(
    "dead-letters",
    "pgque dead-letters list orders",
    "pgque dead-letters add orders revenue 1204",
    "pgque dead-letters replay orders",
    "pgque dead-letters purge orders --older-than 30d --yes",
)
def dead_letters() -> None:
    """List, show, add, replay and purge events that consumers dead-lettered."""


@command(
    "pgque dead-letters list orders",
    "pgque dead-letters list orders --limit 500",
    into=dead_letters,
    name="list",
)
@limit_option
def list_(client: Client, queue: str, limit: int) -> None:
    """Show the newest dead letters of QUEUE."""
    rows = [
        {
            "id": letter.id,
            "time": letter.time,
            "event": letter.event_id,
            "type": letter.type,
            "reason": shortened(letter.reason),
            "payload": shortened(letter.payload),
        }
        for letter in client.dead_letters(queue, limit)
    ]
    show_rows(rows, f"queue {queue} has no dead letters")


@command("pgque dead-letters show orders 17", into=dead_letters)
@click.argument("dead_letter", type=_ID)
def show(client: Client, queue: str, dead_letter: int) -> None:
    """Show one DEAD_LETTER of QUEUE in full: consumer, reason, event, payload."""
    values = client.run(exported(queue, dead_letter))
    if values is None:
        raise PgqueError(
            f"queue {queue} has no dead letter {dead_letter}",
            "`pgque dead-letters list` shows the newest.",
        )
    rows = [
        {"field": name.replace("_", " "), "value": value}
        for name, value in values.items()
        if value is not None
    ]
    click.echo(to_json(values) if wants_json() else as_table(rows, ""))


@command(
    "pgque dead-letters add orders revenue 1204",
    "pgque dead-letters add orders revenue 1204 1207 --reason 'no customer'",
    into=dead_letters,
)
@click.argument("events", metavar="EVENT...", type=_ID, nargs=-1, required=True)
@click.option(
    "--reason", default="set aside by hand", show_default=True, help="Stored with the dead letters."
)
def add(client: Client, queue: str, consumer: str, events: tuple[int, ...], reason: str) -> None:
    """Make events of CONSUMER's open batch dead letters, if the batch fails because of them.

    The batch stays open without these events: the next attempt does not read them. A replay sends
    them again. Refused while a process works on the batch.
    """
    done = client.set_events_aside(queue, consumer, events, reason=reason)
    rest = "no other events" if done.is_empty else "other events"
    show_result(
        f"dead letters added: {done.dead_lettered}; batch {done.batch_id} is open, with {rest}: "
        "have it consumed",
        added=done.dead_lettered,
        batch=done.batch_id,
        empty=done.is_empty,
    )


@command(
    "pgque dead-letters replay orders",
    "pgque dead-letters replay orders --reason 'not JSON%'",
    "pgque dead-letters replay --id 17 --id 18",
    into=dead_letters,
)
@click.argument("queue", required=False)
@click.option(
    "--id", "ids", type=_ID, multiple=True, help="Replay only this dead letter. Repeatable."
)
@click.option("--reason", help="Only dead letters with this reason; % matches any text.")
def replay(client: Client, queue: str | None, ids: tuple[int, ...], reason: str | None) -> None:
    """Send the dead letters of QUEUE, or those given by --id, to their consumers again."""
    if (queue is None) == (not ids) or (ids and reason is not None):
        raise click.UsageError("Give a queue, optionally with --reason, or one or more --id.")
    if queue is None:
        with client.transaction():
            for dead_letter_id in ids:
                client.replay_dead_letter(dead_letter_id)
        show_result(f"dead letters replayed: {len(ids)}", replayed=len(ids))
        return
    replayed, failed, first_error = client.replay_dead_letters(queue, reason=reason)
    show_result(f"dead letters replayed: {replayed}", replayed=replayed, failed=failed)
    if failed:
        raise PgqueError(f"{failed} dead letters were not replayed; the first error: {first_error}")


@command(
    "pgque dead-letters purge orders --yes",
    "pgque dead-letters purge orders --older-than 0s --yes",
    into=dead_letters,
)
@click.option(
    "--older-than",
    type=Age(),
    default="30d",
    show_default=True,
    help="Only dead letters of this age or older: 90s, 15m, 12h, 30d; 0s for all.",
)
@click.option("--yes", is_flag=True, help="Delete them; their events are lost.")
def purge(client: Client, queue: str, older_than: timedelta, yes: bool) -> None:
    """Delete old dead letters of QUEUE. Without --yes, only report how many there are."""
    with client.transaction():  # which an error rolls back
        count = client.purge_dead_letters(queue, older_than)
        if count and not yes:
            raise PgqueError(
                f"{count} dead letters of {queue} would be deleted, and their events lost",
                "Replay them, or add --yes to delete them.",
            )
    show_result(f"dead letters purged: {count}", purged=count)
