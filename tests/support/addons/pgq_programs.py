"""PgQ's own programs as processes: pgqd, and programs on the classes of python3-pgq."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.queues.sql import PATIENCE_SECONDS

DRIVER = Path(__file__).parents[2] / "programs" / "pgq_consumers.py"
SINK = """create table sink
    (consumer text, batch_id bigint, ev_id bigint, ev_retry integer, payload text)"""

_numbers = count(1)


def connect_string(url: str, *without: str) -> str:
    """The database as a libpq string, as these programs take it in their configuration."""
    parts = conninfo_to_dict(url)
    return make_conninfo(**{key: text for key, text in parts.items() if key not in without})


@contextmanager
def pgqd(folder: Path, url: str) -> Iterator[subprocess.Popen[bytes]]:
    """PgQ's ticker and maintenance, for one database, with short periods."""
    config = folder / "pgqd.ini"
    settings = {
        "base_connstr": connect_string(url, "dbname"),
        "initial_database": conninfo_to_dict(url)["dbname"],
        "database_list": conninfo_to_dict(url)["dbname"],
        "pidfile": folder / "pgqd.pid",
        "ticker_period": 0.05,
        "retry_period": 0.1,
        "maint_period": 0.1,
        "check_period": 0.1,
    }
    config.write_text("[pgqd]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items()))
    with (folder / "pgqd.log").open("wb") as log:
        process = subprocess.Popen(["/usr/bin/pgqd", config], stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


class Programs:
    """Programs of tests/programs/pgq_consumers.py on one database.

    Args:
        folder: for their configurations and logs, and the positions of local consumers.
        url: the database.
        target_url: the database where events are applied.
    """

    def __init__(self, folder: Path, url: str, target_url: str | None = None) -> None:
        self.folder = folder
        self._databases = {"db": url, "target_db": target_url or url}
        self._running: list[subprocess.Popen[bytes]] = []

    def call(self, kind: str, *arguments: str, **settings: object) -> str:
        """Runs a program to its end; returns what it prints."""
        done = subprocess.run(
            self._command(kind, arguments, settings),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, kind: str, *arguments: str, **settings: object) -> subprocess.Popen[bytes]:
        """Starts a program, which runs until it is stopped."""
        with (self.folder / f"{next(_numbers)}.log").open("wb") as log:
            process = subprocess.Popen(
                self._command(kind, arguments, settings), stdout=log, stderr=log
            )
        self._running.append(process)
        return process

    def stop(self) -> None:
        """Ends all programs that run, at once."""
        for process in self._running:
            process.kill()
            process.wait()
        self._running.clear()

    def _command(
        self, kind: str, arguments: tuple[str, ...], settings: dict[str, object]
    ) -> list[str]:
        number = next(_numbers)
        config = self.folder / f"{number}.ini"
        lines = {
            "job_name": "c",
            "queue_name": "q",
            "loop_delay": 0.05,
            "exception_sleep": 0.2,
            "pidfile": self.folder / f"{number}.pid",
            "local_tracking_file": self.folder / "c.tick",
            **{name: connect_string(url) for name, url in self._databases.items()},
            **settings,
        }
        text = "".join(f"{key} = {value}\n" for key, value in lines.items())
        # The section of PgQStatus has a name of its own.
        config.write_text(f"[program]\n{text}[pgqadm]\n{text}")
        return ["/usr/bin/python3", str(DRIVER), kind, *arguments, str(config)]
