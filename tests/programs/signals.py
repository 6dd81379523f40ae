"""Programs that get signals."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL, Signals

from tests.support.runner.waiting import wait_until

ROOT = Path(__file__).parents[2]


@contextmanager
def signalled(module: str, *arguments: str, log: Path) -> Iterator[int]:
    """A program of this folder that got its signal; killed at the end, if it still runs.

    Its last argument is a file, which it makes when it sends the signal.
    """
    command = [sys.executable, "-m", f"tests.programs.{module}", *arguments, f"{log}.signalled"]
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, cwd=ROOT, stderr=stderr, start_new_session=True)

    def got_its_signal() -> bool:
        ended_by_itself = process.poll() not in (None, -SIGKILL)
        assert not ended_by_itself, f"it ended: {log.read_text()}"
        return state_of(process.pid) in "TZ"

    try:
        wait_until(got_its_signal)
        yield process.pid
    finally:
        go_on(process.pid, SIGKILL)
        process.wait()


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
