"""Prints on stderr what a command is waiting for, if that takes longer than 1.5 s."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click

_MOMENT_SECONDS = 1.5


@contextmanager
def announce_if_slow(what: str) -> Iterator[None]:
    """Prints once what the command is waiting for, unless the block ends within 1.5 s.

    The text goes to stderr so that pipes stay clean. It is also printed without a terminal, for
    the logs of services.

    Args:
        what: the activity, such as "starting Spark".
    """
    timer = threading.Timer(_MOMENT_SECONDS, _tell, [what])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _tell(what: str) -> None:
    click.echo(f"pgque: {what} ...", err=True)
