"""Stops the server when no process uses it any more, even if its users were killed.

A program of its own, which runs in the server's run folder, also when somebody moves it. It imports
nothing of the package, because each start of a server waits until it runs. Its input is a line when
the server runs, and ends without one if the start fails or the starter is killed.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from io import BufferedReader
from pathlib import Path

# An option of the server. One that another program has started in the folder has no such option.
MARK = "--pgque.embedded=on"

_LOOK_SECONDS = 1
# A user that is killed while it starts the server leaves one that has no pid file yet.
_LOOKS_FOR_START = 10
_STOP_SECONDS = 60
_FOLDER = Path("..")
_DATA = _FOLDER / "data"


def main() -> None:
    """Waits in the background until no process has the lock of the users, and stops the server."""
    # It outlives the process that starts the server.
    if os.fork():
        return
    # It ends after the server, to which a shutdown of the machine sends the same signal.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    # Not until the end of the input: a child that its starter has forked keeps it open.
    is_started = sys.stdin.readline() != ""
    with (_FOLDER / "start.lock").open("rb") as start, (_FOLDER / "users.lock").open("rb") as users:
        flock(start, LOCK_EX)
        server = _server()
        for _ in range(0 if is_started else _LOOKS_FOR_START):
            if server is not None:
                break
            _let_others_start(start)
            server = _server()
        while server is not None:
            # A server writes its process id first, then its options and the folder of its socket.
            _let_others_start(start)
            before, server = server, _server()
            with suppress(BlockingIOError):
                if server is not None and server[0] == before[0]:
                    flock(users, LOCK_EX | LOCK_NB)
                    _stop(*server)
                # Unlike the folder of the log, one for the socket alone is empty now.
                with suppress(OSError):
                    Path((server or before)[1]).rmdir()
                return


def is_embedded(data: Path) -> bool:
    """Whether the running server was started by this package."""
    return f'"{MARK}"' in (data / "postmaster.opts").read_text()


def _let_others_start(lock: BufferedReader) -> None:
    flock(lock, LOCK_UN)
    time.sleep(_LOOK_SECONDS)
    flock(lock, LOCK_EX)


def _server() -> tuple[str, str] | None:
    """Returns the server's process id and folder of the socket; None without a server."""
    try:
        pid, _, _, _, socket_dir, *_ = (_DATA / "postmaster.pid").read_text().split("\n")
        return (pid, socket_dir) if is_embedded(_DATA) else None
    except (OSError, ValueError):
        return None


def _stop(pid: str, socket_dir: str) -> None:
    """Stops the server as `pg_ctl` does, whose package may be gone."""
    with suppress(OSError):
        # Another program may have the process id of a killed server.
        if not Path("/proc", pid, "cwd").samefile(_DATA):
            return
    with suppress(OSError):
        os.kill(int(pid), signal.SIGINT)
        deadline = time.monotonic() + _STOP_SECONDS
        while _server() == (pid, socket_dir) and time.monotonic() < deadline:
            time.sleep(0.1)


if __name__ == "__main__":
    main()
