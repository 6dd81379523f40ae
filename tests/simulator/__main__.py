"""Runs the simulator: `make simulate`."""

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.support.servers.postgres import Postgres

from .faults import FAULTS, install_sql
from .run import Program, Report, program, simulate

_SETTINGS = {
    "full_page_writes": "off",
    "autovacuum": "off",
    "max_prepared_transactions": "20",
}


class Databases:
    """Databases with the queue installed, each for one run."""

    def __init__(self, server: Postgres, sql: bytes) -> None:
        self.server = server
        self.sql = sql
        self._numbers = itertools.count()
        self._execute("create database template_of_runs")
        with psycopg.connect(server.database_url("template_of_runs"), autocommit=True) as db:
            db.execute(sql)

    def _execute(self, sql: str) -> None:
        with psycopg.connect(self.server.url, autocommit=True) as db:
            db.execute(sql.encode())

    @contextmanager
    def new(self) -> Iterator[str]:
        """A new database; it is dropped at the end."""
        name = f"run_{next(self._numbers)}"
        self._execute(f"create database {name} template template_of_runs strategy file_copy")
        try:
            yield self.server.database_url(name)
        finally:
            self._execute(f"drop database {name} with (force)")

    def simulate(self, steps: Program) -> Report:
        """Runs a program on a new database."""
        with self.new() as url:
            return simulate(url, steps, self.sql, self.crash)

    def crash(self) -> None:
        """Stops the server without a checkpoint, and starts it again."""
        self.server.stop("immediate")
        self.server.start()


def main() -> int:
    """Runs the simulator from the command line; returns 1 if a seed fails."""
    parser = argparse.ArgumentParser(
        prog="make simulate",
        description="Runs many sessions of a real PostgreSQL, statement by statement, in an order "
        "that the seed fixes, and compares what each consumer gets with a plain model.",
    )
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds to run")
    parser.add_argument("--steps", type=int, default=2000, help="of each seed")
    parser.add_argument("--fault", choices=FAULTS, help="to put into the engine")
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="pgque-simulator-") as folder:
        server = Postgres(Path(folder) / "postgres", 18, **_SETTINGS).start()
        databases = Databases(server, install_sql(options.fault))
        try:
            for seed in range(options.seed, options.seed + options.seeds):
                failed += not _run(databases, seed, options.steps)
        finally:
            server.stop()
    return int(failed > 0)


def _run(databases: Databases, seed: int, steps: int) -> bool:
    began = time.monotonic()
    report = databases.simulate(program(seed, steps))
    rate = steps / (time.monotonic() - began)
    if report.failure is None:
        print(f"seed {seed}: {steps} steps, {report.events} events, {rate:.0f} steps/s", flush=True)
        return True
    print(f"seed {seed} failed after {report.failure}", flush=True)
    return False


if __name__ == "__main__":
    sys.exit(main())
