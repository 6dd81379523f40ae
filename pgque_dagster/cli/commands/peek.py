"""`pgque peek`: reads events, once or as they come, and moves nothing."""

import select
import sys
import time
from collections.abc import Sequence

import click

from ...client import Client, peeking
from ...client.models import Message
from ..app import command
from ..output import Row, as_text, shortened, show_rows, to_json, wants_json
from ..times import QueuePosition

_LIMIT = 20
_SECONDS_BETWEEN_LOOKS = 0.5


@command(
    "pgque peek orders",
    "pgque peek orders --from earliest --limit 5",
    "pgque peek orders --from 2026-05-24T18:00 --json",
    "pgque peek orders --follow",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    help="Maximum number to show.  [default: 20; with --follow: no limit]",
)
@click.option(
    "--from",
    "position",
    type=QueuePosition(),
    help="Show the first events after this position, not the newest: earliest, a time, or a tick.",
)
@click.option(
    "--follow",
    is_flag=True,
    help="Print the events as they come, until Ctrl-C: complete, or with --json one object a line.",
)
def peek(client: Client, queue: str, limit: int | None, position: str | None, follow: bool) -> None:
    """Show events of QUEUE that are retained. No consumer is needed, and none is moved.

    Shows the events that have a tick, so those of the last seconds may be missing. Nothing is kept
    for this command: with --follow, what is retained for nobody else can be gone before it is
    printed; the command fails then.
    """
    if follow:
        _follow(client, queue, position or "latest", limit)
        return
    events = peeking.peek(client, queue, position, limit or _LIMIT)
    show_rows(
        [_row(event) for event in events],
        f"queue {queue} retains no events there that have a tick; `pgque ticker` makes ticks",
    )


def _follow(client: Client, queue: str, position: str, limit: int | None) -> None:
    shown = 0
    for events in peeking.follow(client, queue, position):
        shown += _show(events if limit is None else events[: limit - shown])
        if shown == limit:
            return
        if not events:
            _pause()


def _show(events: Sequence[Message]) -> int:
    """Prints events, and returns how many."""
    for event in events:
        click.echo(to_json(_row(event)) if wants_json() else _line(event))
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


def _row(event: Message) -> Row:
    return {
        "event": event.msg_id,
        "time": event.created_at,
        "type": event.type,
        "payload": shortened(event.payload),
        **{
            name: value
            for name in ("extra1", "extra2", "extra3", "extra4")
            if wants_json() and (value := getattr(event, name)) is not None
        },
    }


def _line(event: Message) -> str:
    values = (event.created_at, event.msg_id, event.type, event.payload)
    return "  ".join(map(as_text, values))
