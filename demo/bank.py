"""The bank: pgbench's four tables, and its clients, which transfer money."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from harness import processes
from harness.interrupts import Interrupts
from pgque_dagster.embedded import EmbeddedPostgres

from .console import DemoError

QUEUE = "bank"
SCALE = 1  # Branches; each has 10 tellers and 100,000 accounts.
_CLIENTS = 4
_FOR_EVER = 10**9  # seconds

# A replica needs a key, and pgbench's history has none.
_KEY = "alter table pgbench_history add column id bigint generated always as identity primary key"
_CITY = "alter table pgbench_branches add column city text not null default 'Ulm'"
_MOVE = "update pgbench_branches set city = 'Neu-Ulm' where bid = 1"
# Writers wait behind an ALTER TABLE that waits.
_LOCK_TIMEOUT = "set lock_timeout = '200ms'"


def open_bank(server: EmbeddedPostgres, url: str, log: Path) -> None:
    """Creates the bank's tables in a database."""
    _run_pgbench(server, log, "--initialize", f"--scale={SCALE}", "--quiet", url)
    with psycopg.connect(url) as connection:
        connection.execute(_KEY)


def alter_branches(url: str) -> None:
    """Adds a column to the branches while the bank is open, and sets it in one branch."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_LOCK_TIMEOUT)
        while True:
            try:
                connection.execute(_CITY)
                break
            except psycopg.errors.LockNotAvailable:
                time.sleep(0.1)
        connection.execute("reset lock_timeout")
        connection.execute(_MOVE)


class Load:
    """A running pgbench, whose clients transfer money."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    def check(self) -> None:
        """Checks that pgbench is running.

        Raises:
            DemoError: if it has ended.
        """
        if self._process.poll() is not None:
            raise DemoError(f"pgbench has ended: read {self._log}")


@contextmanager
def load(
    server: EmbeddedPostgres,
    url: str,
    log: Path,
    interrupts: Interrupts,
    *,
    rate: int,
) -> Iterator[Load]:
    """Runs pgbench while the block runs.

    Args:
        server: the server whose pgbench to use.
        url: the bank's database.
        log: the file for pgbench's output.
        interrupts: the demo's signal handling.
        rate: transactions per second.

    Yields:
        The load.
    """
    command: list[str | Path] = [
        server.binary("pgbench"),
        "--no-vacuum",
        f"--client={_CLIENTS}",
        f"--time={_FOR_EVER}",
        f"--rate={rate}",
        "--progress=5",
        url,
    ]
    with processes.running(command, interrupts=interrupts, log=log, cwd=log.parent) as process:
        yield Load(process, log)


def _run_pgbench(server: EmbeddedPostgres, log: Path, *arguments: str) -> None:
    with log.open("ab") as output:
        done = subprocess.run(
            [server.binary("pgbench"), *arguments],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    if done.returncode != 0:
        raise DemoError(f"pgbench {arguments[0]} failed: read {log}")
