"""The demo's folder, `.pgque/demo`: made fresh each time, used by one demo at a time."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pgque_dagster.embedded import EmbeddedPostgres

from . import processes
from .console import DemoError

PROJECT = Path(__file__).resolve().parent.parent


class Place:
    """Where the demo keeps what."""

    def __init__(self, folder: Path = PROJECT / ".pgque" / "demo") -> None:
        self.folder = folder
        self.postgres = folder / "postgres"
        self.dagster_home = folder / "dagster_home"
        self.dagster_log = folder / "dagster.log"
        self.dagster_pid = folder / "dagster.pid"
        self.pgbench_log = folder / "pgbench.log"
        self.output = folder / "output"
        self.spark_scratch = folder / "spark"

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Makes the folder new and keeps other demos out of it."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with self.folder.with_suffix(".lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DemoError(
                    f"another demo runs in {self.folder}: wait for its end, or stop it"
                ) from None
            self._make_fresh()
            yield

    def _make_fresh(self) -> None:
        """Removes what the last demo left, its processes included if it was killed."""
        processes.end_recorded(self.dagster_pid, marker=f"DAGSTER_HOME={self.dagster_home}")
        version_file = self.postgres / "data" / "PG_VERSION"
        if (self.postgres / "data" / "postmaster.pid").exists():
            # Joins a server that still runs, and is then the last to leave it.
            with EmbeddedPostgres(self.postgres, version=int(version_file.read_text())):
                pass
        if self.folder.exists():
            shutil.rmtree(self.folder)
        for folder in (self.dagster_home, self.output, self.spark_scratch):
            folder.mkdir(parents=True)
