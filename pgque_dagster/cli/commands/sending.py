"""Sending events: one from the command line, or many from standard input."""

import json
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from difflib import get_close_matches
from itertools import islice
from typing import BinaryIO, NoReturn

import click

from ...client import Client, MalformedPayload, QueueNotFound
from ...client.models import FIRST_ENTRY_ID
from ..database import Database, pass_database
from ..errors import CommandFailed
from ..examples import examples
from ..times import Age, Moment
from ..waiting import announce_if_slow

_STDIN = "-"
_SECONDS_BETWEEN_LOOKS = 0.2


@click.command(
    epilog=examples(
        'pgque send orders \'{"id": 1, "total": 9.5}\'',
        "pgque send orders 'free text' --text --type note",
        "pgque send orders - < orders.jsonl",
        "pgque send reminders '{\"user\": 7}' --at 2030-12-24T18:00+01:00",
        "pgque send orders '{\"id\": 1}' --idem-key order-1",
        "pgque send orders '{\"id\": 1}' --wait 60s",
    ),
)
@click.argument("queue")
@click.argument("payload")
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
    help="Lines of standard input sent in one transaction.",
)
@pass_database
def send(
    database: Database,
    queue: str,
    payload: str,
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
    not at all; a malformed line ends the command and the message says how many were sent.
    """
    has_key = idem_key is not None or partition_key is not None
    if payload == _STDIN and (at or has_key):
        raise click.UsageError("Lines of standard input take no time and no keys.")
    if at and has_key:
        raise click.UsageError("An event with a time takes no keys.")
    with database.client() as client, _explained(client, queue):
        if wait:
            _wait_for_queue(client, queue, wait)
        if payload == _STDIN:
            lines = sys.stdin.buffer
            count = _send_lines(client, queue, lines, event_type, text, batch_size)
            click.echo(f"events sent to {queue}: {count}")
        else:
            event = _checked(payload.encode(errors="surrogateescape"), "the payload", text)
            if at:
                click.echo(_send_at(client, queue, event, event_type, at))
            elif idem_key is not None:
                sent = client.send(
                    queue,
                    event,
                    type=event_type,
                    partition_key=partition_key,
                    idempotency_key=idem_key,
                    idempotency_ttl=idem_ttl,
                )
                before = " before, not again" if sent.deduped else ""
                click.echo(f"sent event {sent.event_id} to {queue}{before}")
            else:
                event_id = client.send(queue, event, type=event_type, partition_key=partition_key)
                click.echo(f"sent event {event_id} to {queue}")


def _wait_for_queue(client: Client, queue: str, patience: timedelta) -> None:
    """Returns when the queue is there, or after so long."""
    ends_at = time.monotonic() + patience.total_seconds()
    with announce_if_slow(f"waiting for queue {queue}"):
        while time.monotonic() < ends_at and queue not in _queue_names(client):
            time.sleep(_SECONDS_BETWEEN_LOOKS)


@contextmanager
def _explained(client: Client, queue: str) -> Iterator[None]:
    """Says of a queue that is missing who makes it, and which one may be meant."""
    try:
        yield
    except QueueNotFound as error:
        raise _missing(client, error, queue) from error


def _missing(client: Client, error: QueueNotFound, queue: str) -> CommandFailed:
    near = get_close_matches(queue, _queue_names(client))
    guess = f"; did you mean {' or '.join(near)}?" if near else "."
    return CommandFailed(
        f"{error.args[0]}{guess} A queue that a PgqueResource declares is made when its sensor "
        "first runs, some seconds after somebody switches the sensor on: send with --wait 60s. "
        f"`pgque create-queue {shlex.quote(queue)}` makes any other; an event reaches the "
        "consumers that were registered before it."
    )


def _queue_names(client: Client) -> list[str]:
    return [info.name for info in client.queues()]


def _send_at(client: Client, queue: str, event: str, event_type: str, at: datetime) -> str:
    number = client.send_at(queue, event, at, type=event_type)
    if number < FIRST_ENTRY_ID:
        return f"sent event {number} to {queue}"
    return f"scheduled entry {number} for {queue} at {at:%F %T%z}"


def _send_lines(
    client: Client, queue: str, stream: BinaryIO, event_type: str, text: bool, batch_size: int
) -> int:
    lines = _numbered(stream, skip_blank=not text)
    sent = 0
    while batch := list(islice(lines, batch_size)):
        payloads = [
            _checked(line, f"line {number}, after {sent} events sent,", text)
            for number, line in batch
        ]
        client.send_batch(queue, payloads, type=event_type)
        sent += len(payloads)
    return sent


def _numbered(stream: BinaryIO, *, skip_blank: bool) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(stream, start=1):
        if line.strip() or not skip_blank:
            yield number, line.rstrip(b"\r\n")


def _checked(payload: bytes, place: str, text: bool) -> str:
    try:
        decoded = payload.decode()
    except UnicodeDecodeError as error:
        raise MalformedPayload(f"{place} is not UTF-8: {error.reason}") from error
    if "\0" in decoded:
        raise MalformedPayload(f"{place} holds a zero byte, which PostgreSQL cannot store")
    if not text:
        try:
            json.loads(decoded, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise MalformedPayload(
                f"{place} is not JSON: {error}", "Mend it, or send text as it is with --text."
            ) from error
    return decoded


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON value")
