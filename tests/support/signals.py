"""Programs that get signals."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from signal import Signals

PATIENCE_SECONDS = 600


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


def has_ended(pid: int) -> bool:
    return state_of(pid) == "Z"


def go_on(pid: int, signal: Signals) -> None:
    """Sends a signal to a driver's process group, unless nothing is left of it."""
    try:
        os.killpg(pid, signal)
    except ProcessLookupError:
        return


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)
