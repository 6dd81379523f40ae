"""A ticker in the background of a program."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pgque_dagster.client import PgqueError, Ticker


@contextmanager
def ticking(url: str) -> Iterator[None]:
    """Ticks in the background, as `pgque ticker` does."""
    ticker = Ticker(url)

    def run() -> None:
        try:
            ticker.run()
        except PgqueError as error:
            print(f"the ticker ended: {error}", file=sys.stderr, flush=True)

    thread = threading.Thread(target=run, name="ticker", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ticker.stop()
        thread.join(10)
