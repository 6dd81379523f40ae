"""Ends what a program has started, and removes its files, however the program ends.

Servers, JVMs and `dagster dev` have sessions of their own, which a signal to the program's group
does not reach. Each has a mark in its environment: the ids of the program and, after it, of those
programs under it that mark what they start. A process of its own looks for the mark when the
program is gone.

python harness/leftovers.py <process of the program> <its mark> <folder>
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

MARK = "PGQUE_STARTED_BY"

_LOOK_SECONDS = 0.5
_PATIENCE_SECONDS = 5


def mark() -> str:
    """Marks what this process starts from now on, and returns the mark."""
    ids = [each for each in os.environ.get(MARK, "").split("/") if each]
    if str(os.getpid()) not in ids:
        os.environ[MARK] = "/".join([*ids, str(os.getpid())])
    return os.environ[MARK]


def end_with_this_process() -> None:
    """Marks what this process starts from now on, and has it end with this process.

    Temporary files are in a new folder from now on, which is removed at the end.
    """
    folder = tempfile.mkdtemp(prefix="pgque-")
    # The server may run as another user.
    Path(folder).chmod(0o1777)
    # What ends the others must not be marked itself.
    unmarked = {name: value for name, value in os.environ.items() if name != MARK}
    subprocess.Popen(
        [sys.executable, "-I", __file__, str(os.getpid()), mark(), folder],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=unmarked,
        start_new_session=True,
    )
    os.environ["TMPDIR"] = tempfile.tempdir = folder


def is_marked(process: int, entry: str) -> bool:
    """Whether a process has this entry in its environment, or a mark that begins with it."""
    try:
        environment = b"\0" + Path(f"/proc/{process}/environ").read_bytes() + b"\0"
    except OSError:
        return False
    # Not entry by entry: the tests look at every process that there is, some thousand times.
    return any(f"\0{entry}{end}".encode() in environment for end in ("\0", "/"))


def marked(by: str) -> list[int]:
    """The processes with this mark or one that begins with it."""
    numbers = (int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit())
    return [number for number in numbers if is_marked(number, f"{MARK}={by}")]


def end_started() -> None:
    """Asks all that this process has started and marked to end, and does not wait for it."""
    _send(signal.SIGTERM, marked(os.environ[MARK]))


def _send(number: signal.Signals, processes: Iterable[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def main(parent: int, by: str, folder: str) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    # Servers and JVMs remove shared memory and files if they may end by themselves.
    deadline = time.monotonic() + _PATIENCE_SECONDS
    _send(signal.SIGTERM, marked(by))
    while (left := marked(by)) and time.monotonic() < deadline:
        time.sleep(0.1)
    # In its shutdown, a process may start another.
    while left:
        _send(signal.SIGKILL, left)
        time.sleep(0.1)
        left = marked(by)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
