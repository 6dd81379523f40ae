"""The bank: pgbench's tables and load, and a trigger that publishes each posting as an event."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from pgque_dagster.embedded import EmbeddedPostgres

from . import processes
from .console import DemoError
from .interrupts import Interrupts

QUEUE = "bank"
SCALE = 4  # Branches; each has 10 tellers and 100,000 accounts.
_CLIENTS = 4

_PUBLISH_HISTORY = """
create function publish_history() returns trigger language plpgsql as $$
begin
    perform pgque.insert_event('bank', 'history', row_to_json(new)::text);
    return null;
end;
$$;
create trigger publish_history after insert on pgbench_history
for each row execute function publish_history();
"""

# Events that are not postings of the bank. Each must become a dead letter of each consumer.
MALFORMED = (
    '{"tid": 1, "bid": 1, "aid": 1, "delta": 10',
    "this is no JSON",
    '[{"tid": 1, "bid": 1, "aid": 1, "delta": 1000}]',
    '{"tid": "one", "bid": "one", "aid": "one", "delta": "plenty"}',
    '{"tid": null, "bid": null, "aid": null, "mtime": "2000-01-01T00:00:00"}',
)


def open_bank(server: EmbeddedPostgres, url: str, log: Path) -> None:
    """Creates the bank's accounts in a database, and a trigger that publishes its postings."""
    _run_pgbench(server, log, "--initialize", f"--scale={SCALE}", "--quiet", url)
    with psycopg.connect(url) as connection:
        connection.execute(_PUBLISH_HISTORY)


class Load:
    """A running pgbench, whose clients move money."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def is_running(self) -> bool:
        """Whether pgbench is running.

        Raises:
            DemoError: if pgbench failed.
        """
        code = self._process.poll()
        if code:
            raise DemoError(f"pgbench failed with exit code {code}: read {self._log}")
        return code is None


@contextmanager
def load(
    server: EmbeddedPostgres,
    url: str,
    log: Path,
    interrupts: Interrupts,
    *,
    seconds: int,
    rate: int,
) -> Iterator[Load]:
    """Runs pgbench while the block runs, for at most `seconds`.

    Args:
        server: the server whose pgbench to use.
        url: the bank's database.
        log: the file for pgbench's output.
        interrupts: the demo's signal handling.
        seconds: the duration of the load.
        rate: transactions per second.

    Yields:
        The load.
    """
    command: list[str | Path] = [
        server.binary("pgbench"),
        "--no-vacuum",
        f"--client={_CLIENTS}",
        f"--time={seconds}",
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
