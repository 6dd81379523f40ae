"""Starts child processes in their own sessions, so that each ends with all its descendants."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from . import leftovers
from .interrupts import Interrupts

_GRACE_SECONDS = 15.0
_INTERRUPTED_SECONDS = 4.0


@contextmanager
def running(
    command: Sequence[str | Path],
    *,
    interrupts: Interrupts,
    log: Path,
    cwd: Path,
    env: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a program while the block runs. A Ctrl-C in this terminal does not reach it.

    Args:
        command: the program and its arguments.
        interrupts: defers signals until the program has started.
        log: the file for its output.
        cwd: its working directory.
        env: its environment; by default, this process's.

    Yields:
        The process.
    """
    with ExitStack() as stack:
        with interrupts.deferred(), log.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=cwd,
                env=env,
                start_new_session=True,
            )
            stack.push(lambda kind, *_: _end(process, kind))
        yield process


def free_port() -> int:
    """Returns a port of 127.0.0.1 on which no program listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def end_recorded(pid_file: Path, *, marker: str) -> None:
    """Ends the program whose id a killed program left in a file, unless the id was reused.

    Args:
        pid_file: the file with the process id; it may be missing.
        marker: an entry that only this program has in its environment.
    """
    if not pid_file.exists():
        return
    pid = int(pid_file.read_text())
    if leftovers.is_marked(pid, marker):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_SECONDS
        while leftovers.is_marked(pid, marker) and time.monotonic() < deadline:
            time.sleep(0.1)
    members = session_members(pid)
    leftovers.kill(each for each in members if leftovers.is_marked(each, marker))


def session_members(session: int) -> list[int]:
    """Returns the ids of a session's processes. Spark's workers only leave the group."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if os.getsid(int(entry.name)) == session:
                    members.append(int(entry.name))
    return members


def _end(process: subprocess.Popen[bytes], kind: type[BaseException] | None) -> None:
    """Asks a program to end with its children, and kills the processes that remain."""
    # After a signal, the user is waiting for the prompt.
    is_interrupted = kind is not None and not issubclass(kind, Exception)
    try:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_INTERRUPTED_SECONDS if is_interrupted else _GRACE_SECONDS)
    finally:
        leftovers.kill(session_members(process.pid))
        process.wait()
