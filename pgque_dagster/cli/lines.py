"""Payloads from the shell: one argument, or the lines of standard input."""

import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import NoReturn

import click

from ..client import Client, InvalidArgument, MalformedPayload, PgqueError


def send_lines(
    client: Client, queue: str, event_type: str, batch_size: int, *, text: bool, first: int
) -> int:
    """Sends the lines of standard input and returns their number.

    Args:
        client: the database.
        queue: the queue's name.
        event_type: the type of the events.
        batch_size: how many are sent in a transaction.
        text: whether any text is an event. Otherwise only JSON is, and blank lines are left out.
        first: the number of the first line to send, from 1.

    Raises:
        MalformedPayload: if a line is malformed. The batches before that of the line are sent.
    """
    if sys.stdin is None:
        raise InvalidArgument("standard input is closed", "Pipe lines to this command.")
    lines = _payloads(text, first)
    sent, next_line, is_sending = 0, first, False
    try:
        while batch := list(islice(lines, batch_size)):
            is_sending = True
            client.send_batch(queue, [payload for _, payload in batch], type=event_type)
            is_sending = False
            sent += len(batch)
            next_line = batch[-1][0] + 1
    except (PgqueError, KeyboardInterrupt) as error:
        # Of a batch whose COMMIT is not answered nobody knows.
        unsure = "; the batch from there on may have been sent" if is_sending else ""
        progress = f"{sent} events are sent, go on with --from-line {next_line}{unsure}"
        if isinstance(error, PgqueError):
            error.args = (f"{error.args[0]}; {progress}",)
        else:
            click.echo(f"pgque: {progress}", err=True)
        raise
    return sent


def _payloads(text: bool, first: int) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(sys.stdin.buffer, start=1):
        if number >= first and (line.strip() or text):
            yield number, checked(line.rstrip(b"\r\n"), f"line {number}", text)


def checked(payload: bytes, place: str, text: bool) -> str:
    """Returns a payload as text.

    Args:
        payload: the bytes.
        place: where it stands, for the error.
        text: whether any text will do, and not only JSON.

    Raises:
        MalformedPayload: if it is not UTF-8, not JSON, or nothing that PostgreSQL can store.
    """
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
