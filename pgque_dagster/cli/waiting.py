"""Says on stderr what a command waits for, when that takes longer than a moment."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click

_MOMENT_SECONDS = 1.5


@contextmanager
def told_if_slow(what: str) -> Iterator[None]:
    """Says what is waited for, once, unless the block ends within a moment.

    On stderr, so that what is piped stays clean; also where that is no terminal, for the logs of
    services.

    Args:
        what: "starting Spark", for example.
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
