"""Waits for what other threads and processes do."""

import time
from collections.abc import Callable

PATIENCE_SECONDS = 300


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
