"""Ends what the tests have started, and removes their files, however the tests end.

Servers, JVMs and `dagster dev` have sessions of their own, which the signal that ends `make test`
does not reach. Each has a mark in its environment; a program that the signal does not reach either
looks for them when the process of the tests is gone.

python tests/support/leftovers.py <process of the tests> <mark> <folder>
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

RUN = "PGQUE_TEST_RUN"  # in the environment of each process that the tests start

_LOOK_SECONDS = 0.5
_PATIENCE_SECONDS = 5


def end_with_this_process(folder: Path) -> None:
    """Marks what this process starts from now on, and has it end with this process.

    Args:
        folder: temporary files, removed at the end.
    """
    os.environ.pop(RUN, None)
    subprocess.Popen(
        [
            *(sys.executable, "-I", __file__, str(os.getpid()), f"{RUN}={os.getpid()}"),
            folder,
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.environ[RUN] = str(os.getpid())


def marked(mark: str) -> list[int]:
    """The processes that carry a mark."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found


def _send(number: signal.Signals, processes: Iterable[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def main(parent: int, mark: str, folder: str) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    # Servers and JVMs remove shared memory and files if they may end by themselves.
    deadline = time.monotonic() + _PATIENCE_SECONDS
    _send(signal.SIGTERM, marked(mark))
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    # In its shutdown, a process may start another.
    while left:
        _send(signal.SIGKILL, left)
        time.sleep(0.1)
        left = marked(mark)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
