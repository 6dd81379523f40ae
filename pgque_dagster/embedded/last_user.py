"""Stops the server when no process uses it any more, even if its users were killed.

A program of its own, `python last_user.py COMMAND…`, in which COMMAND stops the server. It runs in
the server's run folder, also when somebody moves it. It imports nothing of the package, because
each start of a server waits until it runs. Its input is the process id of the server that it stops,
so that it leaves a server alone that another program starts in the folder later.
"""

import os
import subprocess
import sys
import time
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from io import BufferedReader
from pathlib import Path

_LOOK_SECONDS = 1
# A user that is killed while it starts the server leaves one that has no pid file yet.
_LOOKS_FOR_START = 10
_FOLDER = Path("..")


def main(*stop: str) -> None:
    """Waits in the background until no process has the lock of the users, and stops the server."""
    # It outlives the process that starts the server.
    if os.fork():
        return
    pid = sys.stdin.read()  # until the server runs, or its starter is killed
    with (_FOLDER / "start.lock").open("rb") as start, (_FOLDER / "users.lock").open("rb") as users:
        flock(start, LOCK_EX)
        server = _server()
        for _ in range(0 if pid else _LOOKS_FOR_START):
            if server is not None:
                break
            _let_others_start(start)
            server = _server()
        while server is not None and pid in ("", server[0]) and _server() == server:
            with suppress(BlockingIOError):
                flock(users, LOCK_EX | LOCK_NB)
                subprocess.run(stop, check=False)
                # Unlike the folder of the log, one for the socket alone is empty now.
                with suppress(OSError):
                    Path(server[1]).rmdir()
                return
            _let_others_start(start)


def _let_others_start(lock: BufferedReader) -> None:
    flock(lock, LOCK_UN)
    time.sleep(_LOOK_SECONDS)
    flock(lock, LOCK_EX)


def _server() -> tuple[str, str] | None:
    """Returns the process id and the folder of the socket; None without a server."""
    try:
        pid, _, _, _, socket_dir, *_ = (_FOLDER / "data" / "postmaster.pid").read_text().split("\n")
    except (FileNotFoundError, ValueError):
        return None
    return pid, socket_dir


if __name__ == "__main__":
    main(*sys.argv[1:])
