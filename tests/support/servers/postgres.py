"""PostgreSQL servers of tests, each in a folder of its own: embedded ones, and Debian's 15."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from pgque_dagster.embedded import EmbeddedPostgres, EmbeddedPostgresError

DEBIAN_VERSION = 15

_DEBIAN_BIN = Path("/usr/lib/postgresql/15/bin")


class Postgres(EmbeddedPostgres):
    """A server that does not wait for the disk, and that may be configured, copied and promoted.

    Args:
        folder: for its data, socket and log.
        version: 18, 16, or Debian's 15.
        settings: of postgresql.conf, a dot in their name written as two underscores.
    """

    def __init__(self, folder: Path, version: int, **settings: str) -> None:
        is_debian = version == DEBIAN_VERSION
        super().__init__(folder, version=18 if is_debian else version)
        if is_debian:
            self._version, self._bin = version, _DEBIAN_BIN
        self._settings = settings

    @property
    def version(self) -> int:
        return self._version

    @property
    def data(self) -> Path:
        return self._cluster

    def configure(self, **settings: str) -> None:
        """Has the next start use these settings."""
        with (self.data / "postgresql.conf").open("a") as conf:
            for name, setting in settings.items():
                conf.write(f"{name.replace('__', '.')} = '{setting}'\n")

    def stop(self, mode: str = "fast") -> None:
        if mode == "immediate" and self.is_running:
            self.run("pg_ctl", "stop", "--wait", "--pgdata=../data", "--mode=immediate")
        super().stop()

    def crash(self) -> None:
        """Dies without a word, and comes back."""
        os.kill(self.pid, signal.SIGKILL)
        self.stop()
        self.start()

    def promote(self) -> None:
        self.run("pg_ctl", "promote", "--wait", "--pgdata=../data")

    def back_up(self, origin: EmbeddedPostgres, *options: str) -> None:
        """Copies a running server's data."""
        self._prepare_folder()
        self.run("pg_basebackup", "--pgdata=../data", f"--dbname={origin.url}", *options)

    def copy(self, origin: "Postgres") -> None:
        """Copies a server's folder, as a snapshot of the disk is."""
        self._prepare_folder()
        _copy(origin.data, self.data)

    def run(self, program: str, *arguments: str) -> None:
        """Runs a program of the server beside the folder `data`, as its user."""
        try:
            self._run(program, *arguments)
        except EmbeddedPostgresError as error:
            # The test's folder and its log are gone when somebody reads of it.
            error.add_note(self.log_file.read_text()[-4000:])
            raise

    def _initialize(self) -> None:
        if self.has_data:
            return
        # To make a cluster takes as long as fifty copies.
        made = Path(_clusters().name) / str(self._version)
        if made.exists():
            _copy(made, self.data)
        else:
            super()._initialize()
            _copy(self.data, made)
        # It is for crashes of the machine, and most of a small test's time.
        self.configure(fsync="off", **self._settings)


@cache
def _clusters() -> "tempfile.TemporaryDirectory[str]":
    """The clusters that this process has made, as they were when they were new."""
    return tempfile.TemporaryDirectory(prefix="pgque-clusters-")


def _copy(origin: Path, target: Path) -> None:
    """Copies a folder with its files' owners."""
    subprocess.run(["cp", "-a", origin, target], check=True)


@contextmanager
def pg_cron_server(database: str = "postgres") -> Iterator[Postgres]:
    """A server that loads pg_cron for a database, which has not got the extension yet."""
    with tempfile.TemporaryDirectory(prefix="pgque-cron-") as folder:
        settings = {
            "shared_preload_libraries": "pg_cron",
            "cron__database_name": database,
            "cron__host": f"{folder}/postgres/run",
        }
        with Postgres(Path(folder) / "postgres", DEBIAN_VERSION, **settings) as running:
            yield running
