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
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

MARK = "PGQUE_STARTED_BY"

_LOOK_SECONDS = 0.2
_PATIENCE_SECONDS = 3.0
# These remove shared memory, after all others have ended.
_LAST = (b"/postgres\0", b"multiprocessing.resource_tracker")
_PATIENCE_FOR_LAST = 2.0

_ending: "subprocess.Popen[bytes] | None" = None


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
    global _ending
    folder = tempfile.mkdtemp(prefix="pgque-")
    # The server may run as another user.
    Path(folder).chmod(0o1777)
    # What ends the others must not be marked itself.
    unmarked = {name: value for name, value in os.environ.items() if name != MARK}
    _ending = subprocess.Popen(
        [sys.executable, "-I", __file__, str(os.getpid()), mark(), folder],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=unmarked,
        start_new_session=True,
    )
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    # Java does not read TMPDIR.
    java = f'"-Djava.io.tmpdir={folder}"'
    os.environ["SPARK_SUBMIT_OPTS"] = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {java}"


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
    """Ends what this process has started, and this process if it has not ended soon after."""
    if _ending is not None:
        _ending.terminate()


def main(parent: int, by: str, folder: str) -> None:
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    before = _surroundings(parent)
    while os.getppid() == parent and not told.wait(_LOOK_SECONDS):
        # Nobody tells make's program that the terminal of make is closed, or that make was killed.
        now = _surroundings(parent)
        for number, old, new in zip((signal.SIGHUP, signal.SIGTERM), before, now, strict=True):
            if new != old:
                _send(number, [parent])
        before = now
    _end(by)
    if os.getppid() == parent:
        time.sleep(_PATIENCE_FOR_LAST)
        if os.getppid() == parent:
            os.kill(parent, signal.SIGKILL)
        _end(by)
    shutil.rmtree(folder, ignore_errors=True)


def _surroundings(process: int) -> tuple[str, str]:
    """The terminal of a process, and its parent if that is make."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return "", ""
    _, parent, _, _, terminal, *_ = status.rpartition(")")[2].split()
    return terminal, parent if "MAKELEVEL" in os.environ else ""


def _end(by: str) -> None:
    """Ends all processes with a mark."""
    began = time.monotonic()
    # SIGCONT is for stopped processes. At SIGTERM, PostgreSQL waits for its clients; at SIGINT, it
    # does not.
    for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGINT):
        _send(number, marked(by))
    # In its shutdown, a process may start another.
    while left := marked(by):
        waited = time.monotonic() - began
        if waited > _PATIENCE_SECONDS + _PATIENCE_FOR_LAST:
            _send(signal.SIGKILL, left)
        elif waited > _PATIENCE_SECONDS:
            kill(left)
        time.sleep(0.1)


def kill(processes: Iterable[int]) -> None:
    """Kills processes, except those that remove shared memory and end by themselves."""
    _send(signal.SIGKILL, (each for each in processes if not _is_last(each)))


def _send(number: signal.Signals, processes: Iterable[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def _is_last(process: int) -> bool:
    try:
        command = Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False
    return any(each in command for each in _LAST)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
