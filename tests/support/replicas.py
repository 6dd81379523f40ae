"""PostgreSQL servers that are copied, promoted and recovered, each in a folder of its own."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.conftest import INSTALL_SQL
from tests.support.queues import PATIENCE_SECONDS, Connection, connect, rows, value

_SETTINGS = """
listen_addresses = ''
fsync = off
wal_level = replica
max_wal_senders = 10
hot_standby = on
timezone = 'UTC'
"""
_WAITS_FOR_REPORTS = """
hot_standby_feedback = on
wal_receiver_status_interval = 1s
max_standby_streaming_delay = -1
"""


class Replica:
    """A server in `<folder>/data`, with its socket in the folder.

    Args:
        folder: a folder that its user may write to.
        binary: finds a program that comes with the server.
        user: options of `subprocess.run` for the user it runs as.
    """

    def __init__(self, folder: Path, binary: Callable[[str], Path], user: dict[str, Any]) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.binary = binary
        self._user = user
        self.is_running = False

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@/{database}?host={quote(str(self.folder), safe='')}"

    def initialize(self, *options: str) -> None:
        names = ("--username=postgres", "--no-locale", "--encoding=UTF8")
        self.run("initdb", "--pgdata=data", *names, *options)

    def configure(self, text: str) -> None:
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.write(text)

    def start(self) -> None:
        self.configure(f"unix_socket_directories = '{self.folder}'\n")
        self.run("pg_ctl", "start", "--wait", "--pgdata=data", "--log=server.log")
        self.is_running = True

    def stop(self, mode: str = "fast") -> None:
        if self.is_running:
            self.run("pg_ctl", "stop", "--wait", "--pgdata=data", f"--mode={mode}")
            self.is_running = False

    def promote(self) -> None:
        self.run("pg_ctl", "promote", "--wait", "--pgdata=data")

    def back_up(self, origin: "Replica", *options: str) -> None:
        self.run("pg_basebackup", "--pgdata=data", f"--dbname={origin.url()}", *options)

    def run(self, program: str, *arguments: str) -> None:
        with (self.folder / "programs.log").open("ab") as log:
            subprocess.run(
                [self.binary(program), *arguments],
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                umask=0o077,
                **self._user,
            )


class Replicas:
    """Servers of one version and one user; all end with the test.

    Args:
        server: a running server, whose programs and user these are.
        root: an empty folder.
    """

    def __init__(self, server: Any, root: Path) -> None:
        with connect(server.url) as db:
            owner = Path(value(db, "show data_directory")).stat()
        self._server = server
        self._root = root
        self._owner = owner
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._user = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}
        self._made: list[Replica] = []

    def new(self, binary: Callable[[str], Path] | None = None) -> Replica:
        """A server's place, with nothing in it; of another version, if its programs are given."""
        folder = self._root / f"s{len(self._made)}"
        folder.mkdir()
        os.chown(folder, self._owner.st_uid, self._owner.st_gid)
        self._made.append(Replica(folder, binary or self._server.binary, self._user))
        return self._made[-1]

    def primary(self, binary: Callable[[str], Path] | None = None, settings: str = "") -> Replica:
        """A running server with the queue installed in the database postgres."""
        primary = self.new(binary)
        primary.initialize()
        primary.configure(_SETTINGS + settings)
        primary.start()
        with connect(primary.url()) as db:
            db.execute(INSTALL_SQL.read_bytes())
        return primary

    def standby(self, primary: Replica, *options: str) -> Replica:
        """A running standby.

        Args:
            primary: what it follows.
            options: of pg_basebackup.
        """
        standby = self.new(primary.binary)
        standby.back_up(primary, "--write-recovery-conf", "--checkpoint=fast", *options)
        standby.start()
        return standby

    def copy(self, origin: Replica) -> Replica:
        """A copy of a server's folder, as a snapshot of the disk is; the server has crashed."""
        copy = self.new()
        shutil.copytree(origin.data, copy.data, symlinks=True)
        for path in (copy.data, *copy.data.rglob("*")):
            os.chown(path, self._owner.st_uid, self._owner.st_gid)
        return copy

    def stop(self) -> None:
        for replica in self._made:
            replica.stop("immediate")


@contextmanager
def replicas(server: Any) -> Iterator[Replicas]:
    """Servers in a folder that is removed at the end."""
    # Short, since a socket's path is; and not tmp_path, which is closed to the servers' user.
    with tempfile.TemporaryDirectory(prefix="pgque-r-") as folder, ExitStack() as stack:
        root = Path(folder)
        root.chmod(0o711)
        made = Replicas(server, root)
        stack.callback(made.stop)
        yield made


@contextmanager
def synchronous_pair(server: Any, *options: str) -> Iterator[tuple[Replica, Replica]]:
    """Commits on the primary wait until the standby has applied them, and it waits for reports.

    Args:
        server: a server of the same version.
        options: of pg_basebackup, by which the standby is made.
    """
    with replicas(server) as made:
        primary = made.primary(settings=_WAITS_FOR_REPORTS)
        standby = made.standby(primary, *options)
        with connect(primary.url()) as admin:
            wait_for(admin, "select count(*) = 1 from pg_stat_replication")
            admin.execute("alter system set synchronous_standby_names = '*'")
            admin.execute("alter system set synchronous_commit = remote_apply")
            admin.value("select pg_reload_conf()")
        yield primary, standby


def cut_off(standby: Replica, primary: Replica) -> None:
    """Lets a standby replay all that the primary has, and nothing after that."""
    with connect(primary.url()) as db:
        newest = value(db, "select pg_current_wal_flush_lsn()::text")
    with connect(standby.url()) as db:
        wait_for(db, f"select pg_last_wal_replay_lsn() >= '{newest}'")
        db.execute("alter system set primary_conninfo = ''")
        db.execute("select pg_reload_conf()")
        wait_for(db, "select count(*) = 0 from pg_stat_wal_receiver")


def wait_for(db: Connection, question: str, *params: object) -> None:
    """Asks until the answer is true."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while rows(db, question, *params) != [(True,)]:
        assert time.monotonic() < deadline, f"still not: {question}"
        time.sleep(0.05)
