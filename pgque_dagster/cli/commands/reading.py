"""Commands that read events: peek moves nothing, tail follows."""

import os
import select
import socket
import sys
import time
from collections.abc import Sequence
from datetime import timedelta

import click

from ...client import Client, peeking
from ...client.models import Message
from ..database import Database, pass_database
from ..examples import examples
from ..output import Row, show_rows, to_json, wants_json
from ..tables import as_text, shortened
from ..times import QueuePosition

_TEXT_WIDTH = 80
_LEASE = timedelta(minutes=1)
_SECONDS_BETWEEN_LOOKS = 0.5


@click.command(
    epilog=examples(
        "pgque peek orders",
        "pgque peek orders --from earliest --limit 5 --full",
        "pgque peek orders --from 2026-05-24T18:00 --json",
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
@click.option(
    "--from",
    "position",
    type=QueuePosition(),
    help="Show the first events after this position, not the newest: earliest, a time, or a tick.",
)
@click.option("--full", is_flag=True, help="Show complete payloads.")
@pass_database
def peek(database: Database, queue: str, limit: int, position: str | None, full: bool) -> None:
    """Show events of QUEUE that are retained. No consumer is needed, and none is moved.

    Shows the events that have a tick, so those of the last seconds may be missing.
    """
    with database.client() as client:
        events = peeking.peek(client, queue, position, limit)
    show_rows(
        [_row(event, full) for event in events],
        f"queue {queue} retains no events there that have a tick; `pgque ticker` makes ticks",
    )


@click.command(
    epilog=examples(
        "pgque tail orders",
        "pgque tail orders --from earliest",
        "pgque tail orders --consumer billing --json",
    ),
)
@click.argument("queue")
@click.option("--from", "position", type=QueuePosition(), help="Begin there, not now.")
@click.option(
    "--consumer",
    help="Consume as this registered consumer: each batch is acked once it is printed.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    help="End after so many events. A consumer's batch is always printed whole.",
)
@pass_database
def tail(
    database: Database, queue: str, position: str | None, consumer: str | None, limit: int | None
) -> None:
    """Print the events of QUEUE as they come, until Ctrl-C; with --json one object a line.

    Without --consumer nothing is moved, and nothing is kept for this command: what is retained for
    nobody else can be gone before it is printed; the command fails then.
    """
    if consumer and position:
        raise click.UsageError("A consumer has its own position: move it with `pgque seek`.")
    with database.client() as client:
        if consumer:
            _consume(client, queue, consumer, limit)
        else:
            _follow(client, queue, position or "latest", limit)


def _follow(client: Client, queue: str, position: str, limit: int | None) -> None:
    start = peeking.tick_of(client, queue, position)
    # Reads nothing, but fails for who may not read, who else would wait for the first event.
    peeking.read(client, queue, start, start, 1)
    shown = 0
    while True:
        end = peeking.newest_tick(client, queue)
        for events in peeking.pages(client, queue, start, end):
            shown += _show(events if limit is None else events[: limit - shown])
            if shown == limit:
                return
        start = end
        _pause()


def _consume(client: Client, queue: str, consumer: str, limit: int | None) -> None:
    shown = 0
    owner = f"pgque tail {socket.gethostname()} {os.getpid()}"
    while True:
        batch = client.claim(queue, consumer, owner=owner, ttl=_LEASE)
        if batch is None:
            _pause()
            continue
        try:
            with batch.keep_alive():
                shown += _show(batch.events())
            batch.ack()
        except BaseException:
            batch.release()
            raise
        if limit is not None and shown >= limit:
            return


def _show(events: Sequence[Message]) -> int:
    """Prints events, and returns how many."""
    for event in events:
        click.echo(to_json(_row(event, True)) if wants_json() else _line(event))
    return len(events)


def _pause() -> None:
    """Waits a moment.

    Raises:
        BrokenPipeError: if nobody reads the output any more.
    """
    output = select.poll()
    try:
        # Errors are reported without being asked for.
        output.register(sys.stdout, 0)
    except (OSError, TypeError, ValueError):
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        return
    if output.poll(_SECONDS_BETWEEN_LOOKS * 1000):
        raise BrokenPipeError


def _row(event: Message, full: bool) -> Row:
    return {
        "event": event.msg_id,
        "time": event.created_at,
        "type": event.type,
        "payload": event.payload if full or wants_json() else shortened(event.payload, _TEXT_WIDTH),
        **{
            name: value
            for name in ("extra1", "extra2", "extra3", "extra4")
            if wants_json() and (value := getattr(event, name)) is not None
        },
    }


def _line(event: Message) -> str:
    values = (event.created_at, event.msg_id, event.type, event.payload)
    return "  ".join(map(as_text, values))
