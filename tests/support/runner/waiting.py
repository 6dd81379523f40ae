"""Waits for what other threads and processes do."""

import time
from collections.abc import Callable

PATIENCE_SECONDS = 300


def wait_until(holds: Callable[[], object]) -> None:
    deadline, pause = time.monotonic() + PATIENCE_SECONDS, 0.01
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(pause)
        pause = min(pause * 1.2, 0.1)  # each look may cost much
