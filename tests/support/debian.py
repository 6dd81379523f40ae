"""Debian's PostgreSQL 15 in a folder of its own, to test on a version that is not embedded."""

import os
import pwd
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

DEBIAN_VERSION = 15

_BIN = Path("/usr/lib/postgresql/15/bin")


class DebianPostgres:
    """A server on a Unix socket, as a context manager; for root it runs as Debian's postgres.

    Further settings are those of postgresql.conf, a dot in their name written as two underscores.
    """

    def __init__(self, data_dir: Path, **settings: str) -> None:
        self._folder = data_dir
        self._settings = settings
        self._as_user: dict[str, Any] = {}
        if os.geteuid() == 0:
            entry = pwd.getpwnam("postgres")
            self._as_user = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}

    @property
    def url(self) -> str:
        return self.database_url("postgres")

    def database_url(self, name: str) -> str:
        return f"postgresql://postgres@/{name}?host={quote(str(self._folder), safe='')}"

    def __enter__(self) -> Self:
        if not _BIN.is_dir():
            raise FileNotFoundError(f"{_BIN} is missing: apt install postgresql-15")
        self._folder.mkdir()
        if self._as_user:
            self._folder.parent.chmod(0o711)
            os.chown(self._folder, self._as_user["user"], self._as_user["group"])
        self._run(
            "initdb", "--pgdata=data", "--username=postgres", "--no-locale", "--encoding=UTF8"
        )
        with (self._folder / "data" / "postgresql.conf").open("a") as conf:
            conf.write(
                f"listen_addresses = ''\nunix_socket_directories = '{self._folder}'\n"
                "max_prepared_transactions = 8\nfsync = off\n"
            )
            for name, setting in self._settings.items():
                conf.write(f"{name.replace('__', '.')} = '{setting}'\n")
        self._run("pg_ctl", "start", "--wait", "--pgdata=data", "--log=server.log")
        return self

    def __exit__(self, *exception: object) -> None:
        self._run("pg_ctl", "stop", "--wait", "--pgdata=data", "--mode=fast")

    def crash(self) -> None:
        """Ends at once, without a checkpoint, and starts again."""
        self._run(
            "pg_ctl", "restart", "--wait", "--pgdata=data", "--log=server.log", "--mode=immediate"
        )

    def binary(self, name: str) -> Path:
        """Path of a program that comes with the server."""
        return _BIN / name

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [_BIN / program, *arguments],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=self._folder,
            **self._as_user,
        )


@contextmanager
def pg_cron_server(database: str = "postgres") -> Iterator[DebianPostgres]:
    """A server that loads pg_cron for a database, which has not got the extension yet."""
    with tempfile.TemporaryDirectory(prefix="pgque-cron-") as folder:
        data_dir = Path(folder) / "postgres"
        settings = {"cron__database_name": database, "cron__host": str(data_dir)}
        with DebianPostgres(data_dir, shared_preload_libraries="pg_cron", **settings) as server:
            yield server
