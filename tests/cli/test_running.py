"""`pgque ticker`, and how signals end the command."""

import signal

import pytest

from pgque_dagster.client import Client
from pgque_dagster.client.peeking import retained_ticks
from tests.cli.conftest import Pgque, Refused, started
from tests.support.queues.sql import PATIENCE_SECONDS
from tests.support.runner.waiting import wait_until


def last_tick(client: Client) -> int:
    return client.run(retained_ticks("orders", "latest", None))[1]


def has_transaction(client: Client) -> bool:
    """Whether another session has sent events in a transaction that is open."""
    with client.transaction() as db:
        row = db.execute(
            "select count(*) from pg_stat_activity where pid <> pg_backend_pid()"
            " and datname = current_database() and state = 'idle in transaction'"
            " and backend_xid is not null"
        ).fetchone()
    return row is not None and row[0] > 0


def test_ticker_once_ticks_what_is_due_or_named(
    pgque: Pgque, misused: Refused, client: Client
) -> None:
    client.force_next_tick("orders")
    assert pgque("ticker", "--once").output == "queues ticked: 1\n"
    assert last_tick(client) == 2
    client.send("orders", "{}")
    client.ticker()
    client.send("orders", "{}")
    assert pgque("ticker", "--once").output == "queues ticked: 0\n"
    assert pgque("ticker", "--once", "--force", "orders").output == "queues ticked: 1\n"
    assert "--once" in misused("ticker", "--force", "orders")


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_the_ticker_ticks_until_a_signal_ends_it_quietly(
    database_url: str, client: Client, number: signal.Signals, exit_code: int
) -> None:
    with started(database_url, "ticker") as process:
        assert process.stderr is not None
        # Where the first tick takes long, a line before says so.
        assert "ticking until Ctrl-C\n" in iter(process.stderr.readline, "")
        for wanted in (2, 3):
            client.force_next_tick("orders")
            wait_until(lambda wanted=wanted: last_tick(client) >= wanted)  # type: ignore[misc]
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, stdout, stderr) == (exit_code, "", "")


def test_ctrl_c_ends_a_command_quietly_and_sends_nothing(database_url: str, client: Client) -> None:
    with started(database_url, "send", "orders", "-", stdin=-1) as process:
        assert process.stdin is not None
        process.stdin.write("1\n" * 1000)
        process.stdin.flush()
        wait_until(lambda: has_transaction(client))
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=PATIENCE_SECONDS)

    assert (process.returncode, stdout, stderr) == (130, "", "")
    with client.transaction() as db:
        assert db.execute("select from pgque.event").fetchone() is None
