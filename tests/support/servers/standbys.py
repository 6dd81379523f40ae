"""PostgreSQL servers that are copied, promoted and recovered."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.conftest import INSTALL_SQL, server_version
from tests.support.queues.sql import Connection, connect, rows, value
from tests.support.runner.waiting import wait_until
from tests.support.servers.postgres import Postgres

_WAITS_FOR_REPORTS = {
    "hot_standby_feedback": "on",
    "wal_receiver_status_interval": "1s",
    "max_standby_streaming_delay": "-1",
}


class Replicas:
    """Servers of the tests' version; all end with the test."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._made: list[Postgres] = []

    def new(self, version: int | None = None, **settings: str) -> Postgres:
        """A server's place, with nothing in it."""
        folder = self._root / f"s{len(self._made)}"
        self._made.append(Postgres(folder, version or server_version(), **settings))
        return self._made[-1]

    def primary(self, version: int | None = None, **settings: str) -> Postgres:
        """A running server with the queue installed in the database postgres."""
        primary = self.new(version, **settings).start()
        with connect(primary.url) as db:
            db.execute(INSTALL_SQL.read_bytes())
        return primary

    def standby(self, primary: Postgres, *options: str) -> Postgres:
        """A running standby."""
        standby = self.new(primary.version)
        standby.back_up(primary, "--write-recovery-conf", "--checkpoint=fast", *options)
        return standby.start()

    def copy(self, origin: Postgres) -> Postgres:
        """A copy of a server's folder, as a snapshot of the disk is; the server has crashed."""
        copy = self.new()
        copy.copy(origin)
        return copy

    def stop(self) -> None:
        for replica in self._made:
            replica.stop("immediate")


@contextmanager
def replicas() -> Iterator[Replicas]:
    """Servers in a folder that is removed at the end."""
    # Short, since a socket's path is; and not tmp_path, which is closed to the servers' user.
    with tempfile.TemporaryDirectory(prefix="pgque-r-") as folder, ExitStack() as stack:
        made = Replicas(Path(folder))
        stack.callback(made.stop)
        yield made


@contextmanager
def synchronous_pair(*options: str) -> Iterator[tuple[Postgres, Postgres]]:
    """Commits on the primary wait until the standby has applied them, and it waits for reports."""
    with replicas() as made:
        primary = made.primary(**_WAITS_FOR_REPORTS)
        standby = made.standby(primary, *options)
        with connect(primary.url) as admin:
            wait_for(admin, "select count(*) = 1 from pg_stat_replication")
            admin.execute("alter system set synchronous_standby_names = '*'")
            admin.execute("alter system set synchronous_commit = remote_apply")
            admin.value("select pg_reload_conf()")
        yield primary, standby


def cut_off(standby: Postgres, primary: Postgres) -> None:
    """Lets a standby replay all that the primary has, and nothing after that."""
    with connect(primary.url) as db:
        newest = value(db, "select pg_current_wal_flush_lsn()::text")
    with connect(standby.url) as db:
        wait_for(db, f"select pg_last_wal_replay_lsn() >= '{newest}'")
        db.execute("alter system set primary_conninfo = ''")
        db.execute("select pg_reload_conf()")
        wait_for(db, "select count(*) = 0 from pg_stat_wal_receiver")


def wait_for(db: Connection, question: str, *params: object) -> None:
    """Asks until the answer is true."""
    wait_until(lambda: rows(db, question, *params) == [(True,)])
