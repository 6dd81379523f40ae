"""Stops the server when no process uses it any more, even if its users were killed.

A program of its own, `python last_user.py FOLDER COMMAND…`, in which COMMAND stops the server. It
imports nothing of the package, because each start of a server waits until it runs.
"""

import os
import subprocess
import sys
import time
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from pathlib import Path

_LOOK_SECONDS = 1


def main(folder: Path, *stop: str) -> None:
    """Waits in the background until no process has the lock of the users, and stops the server."""
    # It outlives the process that starts the server.
    if os.fork():
        return
    with (folder / "start.lock").open("rb") as start, (folder / "users.lock").open("rb") as users:
        flock(start, LOCK_EX)  # until the server runs
        server = _server(folder)
        while server is not None and _server(folder) == server:
            with suppress(BlockingIOError):
                flock(users, LOCK_EX | LOCK_NB)
                subprocess.run(stop, check=False)
                # Unlike the folder of the log, one for the socket alone is empty now.
                with suppress(OSError):
                    Path(server[1]).rmdir()
                return
            flock(start, LOCK_UN)
            time.sleep(_LOOK_SECONDS)
            flock(start, LOCK_EX)


def _server(folder: Path) -> tuple[str, str] | None:
    """Returns the process id and the folder of the socket; None without a server."""
    try:
        pid, _, _, _, socket_dir, *_ = (folder / "data" / "postmaster.pid").read_text().split("\n")
    except (FileNotFoundError, ValueError):
        return None
    return pid, socket_dir


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
