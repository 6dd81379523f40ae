"""Sending events: one from the command line, or one per line of standard input."""

import json
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from typing import NoReturn

import click

from ...client import Client, InvalidArgument, MalformedPayload
from ...client.queues import queue_names
from ..app import command
from ..printing import announce_if_slow, show_result
from ..times import Age

_STDIN = "-"
_LINES_PER_CALL = 1000
_POLL_SECONDS = 0.2


@command(
    'pgque send orders \'{"id": 1, "total": 9.5}\'',
    "pgque send orders 'free text' --text --type note",
    "pgque send orders - < orders.jsonl",
    "pgque send orders '{\"id\": 1}' --wait 60s",
)
@click.option(
    "--type", "event_type", default="default", show_default=True, help="The event's type."
)
@click.option("--text", is_flag=True, help="Send any text, not only JSON.")
@click.option(
    "--wait",
    type=Age(),
    default="0s",
    show_default=True,
    help="How long to wait for a missing queue, such as one that Dagster still has to create.",
)
def send(
    client: Client, queue: str, payload: str, event_type: str, text: bool, wait: timedelta
) -> None:
    """Send PAYLOAD to QUEUE, or, if it is `-`, each line of standard input.

    A payload must be JSON unless --text is given. Lines are sent in one transaction; if one is
    malformed, none is sent.
    """
    if wait:
        _wait_for_queue(client, queue, wait)
    if payload == _STDIN:
        count = _send_lines(client, queue, event_type, text)
        show_result(f"events sent to {queue}: {count}", sent=count)
    else:
        event = _checked(payload.encode(errors="surrogateescape"), "the payload", text)
        event_id = client.send(queue, event, type=event_type)
        show_result(f"sent event {event_id} to {queue}", event=event_id)


def _wait_for_queue(client: Client, queue: str, patience: timedelta) -> None:
    """Returns once the queue exists, or after the given time."""
    deadline = time.monotonic() + patience.total_seconds()
    with client.transaction() as connection:
        # It may be another database than the one in which the queue is going to be.
        where = f"database {connection.info.dbname} on {connection.info.host}"
    with announce_if_slow(f"waiting for queue {queue} in {where}"):
        while time.monotonic() < deadline and queue not in client.run(queue_names()):
            time.sleep(_POLL_SECONDS)


def _send_lines(client: Client, queue: str, event_type: str, text: bool) -> int:
    if sys.stdin is None:
        raise InvalidArgument("standard input is closed", "Pipe lines to this command.")
    lines = _payloads(text)
    sent = 0
    with client.transaction():
        while batch := list(islice(lines, _LINES_PER_CALL)):
            client.send_batch(queue, batch, type=event_type)
            sent += len(batch)
    return sent


def _payloads(text: bool) -> Iterator[str]:
    """Yields the lines of standard input. Blank lines are text, but not JSON."""
    for number, line in enumerate(sys.stdin.buffer, start=1):
        if line.strip() or text:
            yield _checked(line.rstrip(b"\r\n"), f"line {number}", text)


def _checked(payload: bytes, place: str, text: bool) -> str:
    """Returns a payload as text: JSON, or any with `text`. Errors name the `place`.

    Raises:
        MalformedPayload: if it is not UTF-8, not JSON, or cannot be stored by PostgreSQL.
    """
    try:
        decoded = payload.decode()
    except UnicodeDecodeError as error:
        raise MalformedPayload(f"{place} is not UTF-8: {error.reason}") from error
    if "\0" in decoded:
        raise MalformedPayload(f"{place} contains a NUL byte, which PostgreSQL cannot store")
    if not text:
        try:
            json.loads(decoded, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise MalformedPayload(
                f"{place} is not JSON: {error}", "Correct it, or send it as text with --text."
            ) from error
    return decoded


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON value")
