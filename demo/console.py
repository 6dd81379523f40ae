"""What the user sees: progress lines, and errors of one line."""

import time

_started = time.monotonic()


class DemoError(Exception):
    """The demo cannot go on, or did not keep its promise; the text says what to do about it."""


def elapsed() -> float:
    """Seconds since the demo started."""
    return time.monotonic() - _started


def say(text: str) -> None:
    """Prints a line of progress."""
    print(f"{elapsed():6.1f} s  {text}", flush=True)
