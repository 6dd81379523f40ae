"""A shell at hand: runs `pgque` in this process, against a database of the test's own."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pgque_dagster.cli import main
from pgque_dagster.client import Client

Pgque = Callable[..., Result]
Refused = Callable[..., str]


@pytest.fixture
def pgque(database_url: str) -> Pgque:
    """Runs `pgque` with arguments (and standard input) against the test's database."""

    def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(main, arguments, input=stdin, env={"PGQUE_URL": database_url})

    return run


@pytest.fixture
def client(database_url: str) -> Iterator[Client]:
    with Client(database_url) as client:
        client.create_queue("orders")
        client.register_consumer("orders", "billing")
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
