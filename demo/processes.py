"""Child processes in sessions of their own, so that each ends with all its descendants."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from .interrupts import Interrupts

_GRACE_SECONDS = 15.0


@contextmanager
def running(
    command: Sequence[str | Path],
    *,
    interrupts: Interrupts,
    log: Path,
    cwd: Path,
    env: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a program while the block runs; a Ctrl-C in this terminal does not reach it.

    Args:
        command: the program and its arguments.
        interrupts: kept waiting until the program is known.
        log: gets its output.
        cwd: its current folder.
        env: its environment; this process's, if left out.

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
            stack.callback(_end, process)
        yield process


def end_recorded(pid_file: Path, *, marker: str) -> None:
    """Ends the program whose id a killed demo left in a file, if it is that program still.

    Args:
        pid_file: holds the process id; may be missing.
        marker: an entry of the program's environment that no other program has.
    """
    if not pid_file.exists():
        return
    pid = int(pid_file.read_text())
    if _has_in_environment(pid, marker):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_SECONDS
        while _has_in_environment(pid, marker) and time.monotonic() < deadline:
            time.sleep(0.1)
    for member in session_members(pid):
        if _has_in_environment(member, marker):
            with suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)


def session_members(session: int) -> list[int]:
    """Ids of the processes in a session, which Spark's workers share though not the group."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if os.getsid(int(entry.name)) == session:
                    members.append(int(entry.name))
    return members


def _end(process: subprocess.Popen[bytes]) -> None:
    """Lets a program end itself and its children; kills what remains after that."""
    try:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
    finally:
        _kill_session(process.pid)
        process.wait()


def _kill_session(session: int) -> None:
    for member in session_members(session):
        with suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)


def _has_in_environment(pid: int, marker: str) -> bool:
    try:
        return marker.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
