"""Prints progress, and defines the demo's error."""

import os
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


def busy() -> str:
    """Returns why the demo takes longer, if other programs use the processors, too."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    # On two cores, the demo alone makes a load of five.
    return (
        f"; this machine is busy: a load of {load:.0f} on {cores} cores" if load > 3 * cores else ""
    )
