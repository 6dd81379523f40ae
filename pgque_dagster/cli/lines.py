"""Lines of a file or of standard input as events."""

import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NoReturn

import click

from ..client import Client, InvalidArgument, MalformedPayload, PgqueError


class Lines:
    """The lines of a file, or of standard input. Blank ones are left out, unless they are text.

    Args:
        file: the file; None for standard input.
        text: whether any text is an event, and not only JSON.
        first: the number of the first line to send, from 1.
    """

    def __init__(self, file: Path | None, *, text: bool, first: int) -> None:
        self._file = file
        self._text = text
        self._first = first
        self._sent = 0

    def send(self, client: Client, queue: str, event_type: str, batch_size: int) -> int:
        """Sends the lines in transactions of so many, and returns the number of events.

        Raises:
            MalformedPayload: if a line is malformed. Nothing of a file is sent then.
        """
        if self._file is None:
            if sys.stdin is None:
                raise InvalidArgument("standard input is closed", "Pipe lines to this command.")
            return self._send(sys.stdin.buffer, client, queue, event_type, batch_size)
        with self._file.open("rb") as stream:
            if not stream.seekable():
                raise InvalidArgument(
                    f"{self._file} cannot be read twice, to check it before it is sent",
                    "Send its lines as they come: pgque send QUEUE - < FILE",
                )
            for _ in self._payloads(stream):
                pass
            stream.seek(0)
            size = self._file.stat().st_size
            with click.progressbar(
                length=size, label="sending", file=sys.stderr, hidden=not sys.stderr.isatty()
            ) as bar:

                def counted() -> Iterator[bytes]:
                    for line in stream:
                        yield line
                        bar.update(len(line))

                return self._send(counted(), client, queue, event_type, batch_size)

    def _send(
        self,
        stream: BinaryIO | Iterator[bytes],
        client: Client,
        queue: str,
        event_type: str,
        batch_size: int,
    ) -> int:
        lines = self._payloads(stream)
        next_line = self._first
        is_sending = False
        try:
            while batch := list(islice(lines, batch_size)):
                is_sending = True
                client.send_batch(queue, [payload for _, payload in batch], type=event_type)
                is_sending = False
                self._sent += len(batch)
                next_line = batch[-1][0] + 1
        except (PgqueError, KeyboardInterrupt) as error:
            # Of a batch whose COMMIT is not answered nobody knows.
            unsure = "; the batch from there on may have been sent" if is_sending else ""
            progress = f"{self._sent} events are sent, go on with --from-line {next_line}{unsure}"
            if isinstance(error, PgqueError):
                error.args = (f"{error.args[0]}; {progress}",)
            else:
                click.echo(f"pgque: {progress}", err=True)
            raise
        return self._sent

    def _payloads(self, stream: BinaryIO | Iterator[bytes]) -> Iterator[tuple[int, str]]:
        for number, line in enumerate(stream, start=1):
            if number < self._first or not (line.strip() or self._text):
                continue
            yield number, checked(line.rstrip(b"\r\n"), f"line {number}", self._text)


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
