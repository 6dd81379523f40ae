"""Sending events: one from the command line, or many from standard input."""

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import click

from ...client import Client, QueueNotFound
from ...client.models import FIRST_ENTRY_ID
from ...client.queues import QueueOfAddon, queue_names
from ..app import command
from ..errors import QueueToSendTo, guess_of, is_log
from ..lines import checked, send_lines
from ..output import announce_if_slow, show_result
from ..times import Age, Moment

_STDIN = "-"
_SECONDS_BETWEEN_LOOKS = 0.2


@command(
    'pgque send orders \'{"id": 1, "total": 9.5}\'',
    "pgque send orders 'free text' --text --type note",
    "pgque send orders - < orders.jsonl",
    "pgque send reminders '{\"user\": 7}' --at 2030-12-24T18:00+01:00",
    "pgque send orders '{\"id\": 1}' --idem-key order-1",
    "pgque send orders '{\"id\": 1}' --wait 60s",
)
@click.option(
    "--from-line",
    type=click.IntRange(min=1),
    default=1,
    help="Begin with this line, to go on after an interruption.",
)
@click.option(
    "--type", "event_type", default="default", show_default=True, help="What kind of event it is."
)
@click.option("--text", is_flag=True, help="Send any text, not only JSON.")
@click.option(
    "--at",
    type=Moment(),
    metavar="TIME",
    help="When to deliver it: 2030-12-24T18:00+01:00, or from now on 90s, 15m, 12h, 30d.",
)
@click.option("--idem-key", metavar="KEY", help="Send nothing if an event was sent under KEY.")
@click.option(
    "--idem-ttl", type=Age(), default="1h", show_default=True, help="How long the key counts."
)
@click.option(
    "--wait",
    type=Age(),
    default="0s",
    show_default=True,
    help="How long to wait for a missing queue, such as one that Dagster has yet to make.",
)
@click.option("--partition-key", metavar="KEY", help="Handled in order with others of this KEY.")
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="Lines sent in one transaction; 1 sends each line as it comes.",
)
def send(
    client: Client,
    queue: str,
    payload: str,
    from_line: int,
    event_type: str,
    text: bool,
    at: datetime | None,
    idem_key: str | None,
    idem_ttl: timedelta,
    wait: timedelta,
    partition_key: str | None,
    batch_size: int,
) -> None:
    """Send PAYLOAD to QUEUE, or with `-` each line of standard input.

    A payload must be JSON unless --text is given. Lines are sent in batches, each of them whole or
    not at all. A malformed line ends the command. Whatever ends it, the message says with which
    line to go on.
    """
    has_lines = payload == _STDIN
    has_key = idem_key is not None or partition_key is not None
    if has_lines and (at or has_key):
        raise click.UsageError("Lines take no time and no keys.")
    if not has_lines and from_line > 1:
        raise click.UsageError("--from-line is for lines.")
    if at and has_key:
        raise click.UsageError("An event with a time takes no keys.")
    with _explained(queue):
        if wait:
            _wait_for_queue(client, queue, wait)
        if has_lines:
            count = send_lines(client, queue, event_type, batch_size, text=text, first=from_line)
            show_result(f"events sent to {queue}: {count}", sent=count)
        else:
            event = checked(payload.encode(errors="surrogateescape"), "the payload", text)
            if at:
                _send_at(client, queue, event, event_type, at)
            elif idem_key is not None:
                sent = client.send_idem(
                    queue,
                    event,
                    idem_key,
                    type=event_type,
                    ttl=idem_ttl,
                    partition_key=partition_key,
                )
                before = " before, not again" if sent.deduped else ""
                show_result(
                    f"sent event {sent.event_id} to {queue}{before}",
                    event=sent.event_id,
                    deduped=sent.deduped,
                )
            else:
                event_id = client.send(queue, event, type=event_type, partition_key=partition_key)
                show_result(f"sent event {event_id} to {queue}", event=event_id)


def _wait_for_queue(client: Client, queue: str, patience: timedelta) -> None:
    """Returns when the queue is there, or after so long."""
    ends_at = time.monotonic() + patience.total_seconds()
    with announce_if_slow(f"waiting for queue {queue}"):
        while time.monotonic() < ends_at and queue not in client.run(queue_names()):
            time.sleep(_SECONDS_BETWEEN_LOOKS)


@contextmanager
def _explained(queue: str) -> Iterator[None]:
    """Says of a queue that is missing who makes it."""
    try:
        yield
    except QueueNotFound as error:
        if is_log(error) or isinstance(error, QueueOfAddon):
            raise
        raise QueueToSendTo(
            str(error.args[0]),
            f"{guess_of(error)}`pgque create-queue {shlex.quote(queue)}` creates it, and an event"
            " reaches the consumers that were registered before it. A queue that a PgqueResource"
            " declares is created when its sensor first runs, some seconds after somebody switches"
            " the sensor on: send with --wait 60s.",
        ) from error


def _send_at(client: Client, queue: str, event: str, event_type: str, at: datetime) -> None:
    number = client.send_at(queue, event, at, type=event_type)
    if number < FIRST_ENTRY_ID:
        show_result(f"sent event {number} to {queue}", event=number)
    else:
        show_result(f"scheduled entry {number} for {queue} at {at:%F %T%z}", entry=number, at=at)
