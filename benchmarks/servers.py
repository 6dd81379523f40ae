"""Runs Debian's PostgreSQL 15 with PgQ's C extension and pgque in one database."""

import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from pgque_dagster import installer
from tests.support.servers.postgres import DEBIAN_VERSION, Postgres

_RIVAL = Path("/usr/share/postgresql/15/extension/pgq.control")
_names = itertools.count()

Connection = psycopg.Connection[tuple[Any, ...]]

_SETTINGS = ("max_wal_size = '8GB'", "checkpoint_timeout = '30min'", "autovacuum_naptime = '10s'")


@contextmanager
def rivals(**settings: str) -> Iterator[str]:
    """Runs a server with additional settings while the block runs.

    Yields:
        The URL of a database with both schemas, `pgque` and `pgq`.
    """
    if not _RIVAL.is_file():
        raise SystemExit("C PgQ is missing: apt install postgresql-15 postgresql-15-pgq3")
    with (
        tempfile.TemporaryDirectory(prefix="pgque-bench-") as folder,
        Postgres(Path(folder) / "postgres", DEBIAN_VERSION, **settings) as server,
    ):
        with connect(server.url) as connection:
            for setting in _SETTINGS:
                connection.execute(f"alter system set {setting}".encode())
            connection.execute("select pg_reload_conf()")
            connection.execute("create database bench")
        url = server.database_url("bench")
        installer.install(url)
        with connect(url) as connection:
            connection.execute("create extension pgq")
        yield url


def connect(url: str) -> Connection:
    """Connects in autocommit mode, with synchronous_commit off."""
    return psycopg.connect(url, autocommit=True, options="-c synchronous_commit=off")


def value(connection: Connection, statement: str, *params: object) -> Any:
    """Runs a statement and returns the first column of its first row."""
    row = connection.execute(statement.encode(), params or None).fetchone()
    return row[0] if row else None


def prepared(connection: Connection, statement: str) -> Callable[..., PGresult]:
    """Prepares a statement; returns a function that runs it through libpq, with little Python."""
    name = f"bench_{next(_names)}".encode()
    answer = connection.pgconn.prepare(name, statement.encode())
    assert answer.status == ExecStatus.COMMAND_OK, answer.error_message

    def run(*params: bytes, binary: bool = False) -> PGresult:
        answer = connection.pgconn.exec_prepared(
            name, params, param_formats=[int(binary)] * len(params)
        )
        assert answer.status == ExecStatus.TUPLES_OK, answer.error_message
        return answer

    return run
