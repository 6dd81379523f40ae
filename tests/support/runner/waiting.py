"""Waits for what other threads and processes do."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE_SECONDS = 300


def wait_until(holds: Callable[[], object]) -> None:
    deadline, pause = time.monotonic() + PATIENCE_SECONDS, 0.01
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(pause)
        pause = min(pause * 1.2, 0.1)  # each look may cost much


@contextmanager
def in_threads(
    *works: Callable[[], object], stop: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Does works during the block, each in a thread. They are over at its end."""
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()
