"""`pgque ticker` and `pgque maint`, and how signals end the command."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from click.testing import Result

from pgque_dagster.client import Client
from tests.support.queues import PATIENCE_SECONDS

Pgque = Callable[..., Result]

_COMMAND = (sys.executable, "-m", "pgque_dagster.cli")


@pytest.fixture
def ticker(database_url: str) -> Iterator[subprocess.Popen[str]]:
    """A ticker process that has begun to tick."""
    with subprocess.Popen(
        [*_COMMAND, "ticker"],
        env={**os.environ, "PGQUE_URL": database_url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        # Where the first tick takes long, a line before says so.
        assert "ticking until Ctrl-C\n" in iter(process.stderr.readline, "")
        yield process
        process.kill()


def last_tick(client: Client) -> int:
    return client.queues()[0].last_tick_id


def test_start_without_pg_cron_says_what_to_do(refused: Callable[..., str]) -> None:
    line = refused("start")
    assert "runs no pg_cron" in line
    assert "pgque ticker" in line


def test_stop_without_pg_cron_has_nothing_to_do(pgque: Pgque) -> None:
    assert pgque("stop").output == "pg_cron no longer runs ticks\n"


def test_ticker_once_ticks_what_is_due(pgque: Pgque, client: Client) -> None:
    client.force_next_tick("orders")

    assert pgque("ticker", "--once").output == "queues ticked: 1\n"
    assert last_tick(client) == 2


def test_ticker_once_leaves_what_is_not_due(pgque: Pgque, client: Client) -> None:
    client.send("orders", "{}")
    client.ticker()
    client.send("orders", "{}")

    assert pgque("ticker", "--once").output == "queues ticked: 0\n"


def test_ticker_once_ticks_a_queue_that_is_named_whether_due_or_not(
    pgque: Pgque, client: Client
) -> None:
    client.send("orders", "{}")

    assert pgque("ticker", "--once", "--force", "orders").output == "queues ticked: 1\n"


def test_only_one_tick_can_be_forced(pgque: Pgque, client: Client) -> None:
    result = pgque("ticker", "--force", "orders")

    assert result.exit_code == 2
    assert "--once" in result.stderr


@pytest.mark.usefixtures("ticker")
def test_ticker_goes_on_ticking(client: Client) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while last_tick(client) < 4 and time.monotonic() < deadline:
        client.force_next_tick("orders")
        time.sleep(0.05)

    assert last_tick(client) >= 4


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_ends_the_ticker_quietly(
    ticker: subprocess.Popen[str], number: signal.Signals, exit_code: int
) -> None:
    ticker.send_signal(number)

    stdout, stderr = ticker.communicate(timeout=PATIENCE_SECONDS)

    assert (ticker.returncode, stdout, stderr) == (exit_code, "", "")


@pytest.mark.usefixtures("client")
def test_ctrl_c_ends_a_command_without_a_stack_trace(database_url: str) -> None:
    with (
        subprocess.Popen(
            [*_COMMAND, "--url", database_url, "send", "orders", "-", "--batch-size", "1"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell's background jobs ignore Ctrl-C, and so would what they start.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as process,
        Client(database_url) as client,
    ):
        assert process.stdin is not None
        process.stdin.write("1\n")
        process.stdin.flush()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while client.queues()[0].new_events == 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)

        stdout, stderr = process.communicate(timeout=PATIENCE_SECONDS)

    assert (process.returncode, stdout) == (130, "")
    assert stderr == "pgque: 1 events are sent, go on with --from-line 2\n"


def test_maint_says_how_much_it_did(pgque: Pgque) -> None:
    assert pgque("maint").output.startswith("operations done: ")
