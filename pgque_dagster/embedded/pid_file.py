"""The pid file of a server: who runs in a data folder, and where its socket is."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

RUN_FOLDER = "run"  # beside the data folder


@dataclass(frozen=True)
class Status:
    """The content of a server's pid file."""

    pid: int
    data_dir: str
    port: int
    socket_dir: str


def read_status(pid_file: Path) -> Status | None:
    """Returns the status of the server; None without one."""
    try:
        pid, data_dir, _, port, socket_dir, *_ = pid_file.read_text().split("\n")
        # The file names the folders as they were before a move.
        if Path(socket_dir) == Path(data_dir).with_name(RUN_FOLDER):
            socket_dir = str(pid_file.parent.with_name(RUN_FOLDER))
        return Status(int(pid), data_dir, int(port), socket_dir)
    except (FileNotFoundError, ValueError):
        return None


def remove_foreign(pid_file: Path) -> None:
    """Removes a pid file whose process is not the server of this folder.

    In a copied folder, it is the server of the original. PostgreSQL does not start if another
    program has the process id, as where few are in use, such as in a restarted container.
    """
    status = read_status(pid_file)
    if status is None:
        return
    # The working directory of a server is its data folder, also after a move.
    for data in (f"/proc/{status.pid}/cwd", status.data_dir):
        with suppress(OSError):
            if not Path(data).samefile(pid_file.parent):
                pid_file.unlink()
            return
