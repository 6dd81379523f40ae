"""The folder of a running Dagster. Each program empties it, and only one uses it at a time."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pgque_dagster.embedded import EmbeddedPostgres

from . import HarnessError, processes

PROJECT = Path(__file__).resolve().parent.parent


class Place:
    """The paths of the files of a server, Dagster and its runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.postgres = folder / "postgres"
        self.dagster_home = folder / "dagster_home"
        self.dagster_log = folder / "dagster.log"
        self.dagster_pid = folder / "dagster.pid"
        self.output = folder / "output"
        self.spark_scratch = folder / "spark"

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Empties the folder, and locks it while the block runs."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with self.folder.with_suffix(".lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise HarnessError(
                    f"another program is running in {self.folder}: wait until it ends, or stop it"
                ) from None
            self._make_fresh()
            yield

    def _make_fresh(self) -> None:
        """Removes the files of the last program, and ends its processes if it was killed."""
        processes.end_recorded(self.dagster_pid, marker=f"DAGSTER_HOME={self.dagster_home}")
        version_file = self.postgres / "data" / "PG_VERSION"
        if (self.postgres / "data" / "postmaster.pid").exists():
            # Uses the server if it is still running, and stops it as its last user.
            with EmbeddedPostgres(self.postgres, version=int(version_file.read_text())):
                pass
        if self.folder.exists():
            shutil.rmtree(self.folder)
        for folder in (self.dagster_home, self.output, self.spark_scratch):
            folder.mkdir(parents=True)
