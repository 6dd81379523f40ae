"""Tells any process of the host whether a warm process is alive: each one locks a file."""

import fcntl
import os
import socket
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Address:
    """The address of a warm process. A run's tag has it as text."""

    host: str
    pid: int
    lock: str

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.lock}"

    @classmethod
    def read(cls, text: str) -> "Address":
        """Returns the address that `str` wrote."""
        host, pid, lock = text.split(":", 2)
        return cls(host, int(pid), lock)

    @property
    def is_here(self) -> bool:
        """Whether the process is, or was, on this host."""
        return self.host == socket.gethostname()

    @property
    def is_alive(self) -> bool:
        """Whether the process, on this host, is alive. The kernel frees its lock when it ends."""
        try:
            with Path(self.lock).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except (BlockingIOError, PermissionError):
            # Another user's process may remove its file only when it ends.
            return True
        return False

    def forget(self) -> None:
        """Removes the file of a process that has ended."""
        with suppress(FileNotFoundError):
            Path(self.lock).unlink()


def locked_file() -> tuple[int, str]:
    """Creates and locks a file. A process that inherits the descriptor has the lock, too.

    Returns:
        The descriptor and the path.
    """
    descriptor, path = tempfile.mkstemp(prefix="pgque-warm-")
    os.set_inheritable(descriptor, False)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor, path
