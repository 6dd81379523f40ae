"""What fails in the machine of a server: its clock is stepped, its disk is full."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import pytest

from pgque_dagster.embedded import host

# Debian's faketime.
_LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
HAS_CLOCKS = _LIBRARY is not None
IS_ROOT = os.geteuid() == 0
needs_a_small_disk = pytest.mark.skipif(not IS_ROOT, reason="only root can make a small disk")


class Clock:
    """The clock of what starts while `used`; a file says how far it is from the real one."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._ahead = 0.0
        self.step(0)

    def step(self, seconds: float) -> None:
        """Steps the clock ahead, or back, at once."""
        self._ahead += seconds
        self._file.write_text(f"{self._ahead:+}")
        self._file.chmod(0o644)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Gives this clock to the servers that start in the block, where faketime is installed."""
        faked = {
            "LD_PRELOAD": str(_LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        # Not in this process's environment: setpriv, as root, would make files of the library's
        # that the server may not open.
        before, settings = host.as_user, [f"{name}={value}" for name, value in faked.items()]
        prefix = ["env", *settings] if HAS_CLOCKS else []
        with patch.object(host, "as_user", lambda user: [*before(user), *prefix]):
            yield

    @staticmethod
    def forget(pid: int) -> None:
        """Removes what faketime leaves of a process that was killed."""
        for path in Path("/dev/shm").glob(f"*faketime_s*_{pid}"):
            path.unlink(missing_ok=True)


class Disk:
    """A small file system, which can be full."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    @property
    def is_full(self) -> bool:
        return self._filler.exists()

    def fill(self) -> None:
        with suppress(OSError), self._filler.open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(65536))

    def empty(self) -> None:
        self._filler.unlink(missing_ok=True)

    def remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", self.folder], check=True)


@contextmanager
def small_disk(folder: Path, size: str = "4m") -> Iterator[Disk]:
    """A file system of its own in a new folder, while the block runs; root is needed."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
