"""A shell at hand: runs `pgque` in this process, against a database of the test's own."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result

from pgque_dagster.cli import main
from pgque_dagster.client import Client
from tests.conftest import Server, TemplateWith, new_database
from tests.support.queues.sql import connect, renew_queues

Pgque = Callable[..., Result]
Refused = Callable[..., str]


@pytest.fixture
def pgque(database_url: str) -> Pgque:
    """Runs `pgque` with arguments (and standard input) against the test's database."""

    def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(main, arguments, input=stdin, env={"PGQUE_URL": database_url})

    return run


def billing_of_orders(url: str) -> None:
    with Client(url) as client:
        client.create_queue("orders")
        client.register_consumer("orders", "billing")


@pytest.fixture
def database_url(
    request: pytest.FixtureRequest,
    server: Server,
    template_database: str,
    template_with: TemplateWith,
    administration: psycopg.Connection,
) -> Iterator[str]:
    """A fresh database, with the queue of `client` if the test has that."""
    has_queue = "client" in request.fixturenames
    template = template_with(billing_of_orders) if has_queue else template_database
    with new_database(server, template, administration) as url:
        if has_queue:
            with connect(url) as db:
                renew_queues(db)
        yield url


@pytest.fixture
def client(database_url: str) -> Iterator[Client]:
    with Client(database_url) as client:
        yield client


@pytest.fixture
def refused(pgque: Pgque) -> Refused:
    """Runs `pgque`, expects it to fail as promised, and returns the one line that it wrote."""

    def run(*arguments: str, stdin: str | bytes | None = None) -> str:
        result = pgque(*arguments, stdin=stdin)
        assert result.exit_code == 1
        assert re.fullmatch(r"pgque: .+\n", result.stderr)
        return result.stderr

    return run


@pytest.fixture
def misused(pgque: Pgque) -> Refused:
    """Runs `pgque` with arguments that it cannot understand, and returns what it wrote."""

    def run(*arguments: str, stdin: str | bytes | None = None) -> str:
        result = pgque(*arguments, stdin=stdin)
        assert result.exit_code == 2, result.output
        return result.stderr

    return run


@contextmanager
def started(url: str, *arguments: str, **options: Any) -> Iterator["subprocess.Popen[str]"]:
    """`pgque` as a process of its own."""
    made = {
        "env": {**os.environ, "PGQUE_URL": url, "COLUMNS": "120", "LINES": "40"},
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        # A shell's background jobs ignore Ctrl-C, and so would what they start.
        "preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    }
    command = [sys.executable, "-m", "pgque_dagster.cli", *arguments]
    with subprocess.Popen(command, text=True, **made) as process:
        try:
            yield process
        finally:
            process.kill()


def last_words(process: "subprocess.Popen[str]") -> str:
    """What it still says on standard error."""
    assert process.stderr is not None
    return process.stderr.read()
