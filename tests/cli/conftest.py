"""A shell at hand: runs `pgque` in this process, against a database of the test's own."""

import re
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from pgque_dagster.cli import main
from pgque_dagster.client import Client

Pgque = Callable[..., Result]


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
def refused(pgque: Pgque) -> Callable[..., str]:
    """Runs `pgque`, expects it to fail as promised, and returns the one line that it wrote."""

    def run(*arguments: str, stdin: str | bytes | None = None) -> str:
        result = pgque(*arguments, stdin=stdin)
        assert result.exit_code == 1
        assert re.fullmatch(r"pgque: .+\n", result.stderr)
        return result.stderr

    return run
