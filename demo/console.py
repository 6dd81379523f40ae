"""Prints progress, and defines the demo's error."""

import time

from harness import HarnessError

_started = time.monotonic()


class DemoError(HarnessError):
    """The demo cannot continue, or its result is wrong; the message says what to do."""


def elapsed() -> float:
    """Seconds since the demo started."""
    return time.monotonic() - _started


def say(text: str) -> None:
    """Prints a line of progress."""
    print(f"{elapsed():6.1f} s  {text}", flush=True)
