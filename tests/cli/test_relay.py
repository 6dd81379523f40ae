"""`pgque relay`, in a process of its own."""

import signal

from pgque_dagster.client import Client
from pgque_dagster.client.peeking import retained_ticks
from tests.cli.conftest import Pgque, Refused, started
from tests.support.queues.sql import PATIENCE_SECONDS, connect, value
from tests.support.runner.waiting import wait_until

EVENTS = "select count(*) from pgque.event_1"


def test_a_relay_moves_changes_until_ctrl_c_and_another_one_goes_on(
    database_url: str, pgque: Pgque, client: Client
) -> None:
    with connect(database_url) as db, started(database_url, "relay", "orders") as first:
        assert first.stderr is not None
        assert "relaying into orders until Ctrl-C\n" in iter(first.stderr.readline, "")
        db.execute("create table t (id int primary key)")
        assert pgque("capture", "public.t", "orders").exit_code == 0
        db.execute("insert into t values (1)")
        wait_until(lambda: value(db, EVENTS) == 1)
        with started(database_url, "relay", "orders") as second:
            assert second.stderr is not None
            assert "relaying into orders until Ctrl-C\n" in iter(second.stderr.readline, "")
            first.send_signal(signal.SIGINT)
            assert first.communicate(timeout=PATIENCE_SECONDS) == ("", "")
            assert first.returncode == 130
            db.execute("insert into t values (2)")
            wait_until(lambda: value(db, EVENTS) == 2)
            client.force_next_tick("orders")
            wait_until(lambda: client.run(retained_ticks("orders", "latest", None))[1] > 2)
            second.terminate()
            assert second.communicate(timeout=PATIENCE_SECONDS) == ("", "")
            assert second.returncode == 0


def test_a_relay_is_dropped_once(database_url: str, pgque: Pgque, refused: Refused) -> None:
    with Client(database_url) as client:
        client.create_queue("orders")
    assert "not captured from the WAL" in refused("relay", "orders", "--drop")
    with started(database_url, "relay", "orders") as process:
        assert process.stderr is not None
        assert "relaying into orders until Ctrl-C\n" in iter(process.stderr.readline, "")
        process.terminate()
        process.wait(timeout=PATIENCE_SECONDS)
    assert pgque("relay", "orders", "--drop").output == "dropped the relay of queue orders\n"
    assert "not captured from the WAL" in refused("relay", "orders", "--drop")


def test_a_relay_needs_a_queue(refused: Refused, database_url: str) -> None:
    assert "queue not found" in refused("relay", "nothing")
