"""`pgque peek`: shows events, and moves nothing."""

import click

from ...client import Client, peeking
from ...client.models import Message
from ..app import command
from ..output import Row, shortened, show_rows, wants_json
from ..times import QueuePosition


@command(
    "pgque peek orders",
    "pgque peek orders --from earliest --limit 5",
    "pgque peek orders --from 2026-05-24T18:00 --json",
    "pgque peek orders --consumer revenue --limit 1000",
    "watch pgque peek orders",
)
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
@click.option(
    "--consumer",
    help="Show events of this consumer's open batch, or else of its next ones, with those "
    "that are delivered to it again, such as replayed dead letters.",
)
def peek(
    client: Client, queue: str, limit: int, position: str | None, consumer: str | None
) -> None:
    """Show events of QUEUE that are retained. No consumer is needed, and none is moved.

    Shows the events that have a tick, so those of the last seconds may be missing. Events that are
    delivered to one consumer again are shown with --consumer.
    """
    if consumer is not None and position is not None:
        raise click.UsageError("Give --consumer or --from, not both.")
    events = (
        peeking.peek(queue, position, limit)
        if consumer is None
        else peeking.peek_batch(queue, consumer, limit)
    )
    show_rows(
        [_row(event) for event in client.run(events)],
        f"queue {queue} retains no events there that have a tick; `pgque ticker` makes ticks",
    )


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
