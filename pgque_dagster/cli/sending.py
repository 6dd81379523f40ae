"""Sending events: one from the command line, or many from standard input."""

import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO, NoReturn

import click

from pgque_dagster.client import Client, MalformedPayload

from .database import Database, pass_database
from .examples import examples

_STDIN = "-"


@click.command(
    epilog=examples(
        'pgque send orders \'{"id": 1, "total": 9.5}\'',
        "pgque send orders 'free text' --text --type note",
        "pgque send orders - < orders.jsonl",
    ),
)
@click.argument("queue")
@click.argument("payload")
@click.option(
    "--type", "event_type", default="default", show_default=True, help="What kind of event it is."
)
@click.option("--text", is_flag=True, help="Send any text, not only JSON.")
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="Lines of standard input sent in one transaction.",
)
@pass_database
def send(
    database: Database, queue: str, payload: str, event_type: str, text: bool, batch_size: int
) -> None:
    """Send PAYLOAD to QUEUE, or with `-` each line of standard input.

    A payload must be JSON unless --text is given. Lines are sent in batches, each of them whole or
    not at all; a malformed line ends the command and the message says how many were sent.
    """
    with database.client() as client:
        if payload == _STDIN:
            lines = sys.stdin.buffer
            count = _send_lines(client, queue, lines, event_type, text, batch_size)
            click.echo(f"events sent to {queue}: {count}")
        else:
            event = _checked(payload.encode(errors="surrogateescape"), "the payload", text)
            event_id = client.send(queue, event, type=event_type)
            click.echo(f"sent event {event_id} to {queue}")


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
