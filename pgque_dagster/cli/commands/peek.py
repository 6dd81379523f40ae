"""`pgque peek`: shows events without moving a consumer."""

import click

from ...client import Client, peeking
from ...client.models import Message
from ..app import command, limit_option
from ..printing import Row, shortened, show_rows, wants_json
from ..times import QueuePosition


@command(
    "pgque peek orders",
    "pgque peek orders --from earliest --limit 5",
    "pgque peek orders --from 2026-05-24T18:00 --json",
    "pgque peek orders --consumer revenue --limit 1000",
    "watch pgque peek orders",
)
@limit_option
@click.option(
    "--from",
    "position",
    type=QueuePosition(),
    help="Show the first events after this position, not the newest: earliest, a time, or a tick.",
)
@click.option(
    "--consumer",
    help="Show events of this consumer's open batch, or of its next ones, including those that "
    "are delivered to it again, such as replayed dead letters.",
)
def peek(
    client: Client, queue: str, limit: int, position: str | None, consumer: str | None
) -> None:
    """Show retained events of QUEUE. It needs no consumer, and moves none.

    It shows the events that have a tick, so those of the last seconds may be missing. Events that
    are redelivered to one consumer are shown with --consumer.
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
