"""Commands of an operator: configure, pause, drain, leases, repartition, status, completion."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pgque_dagster.cli import main
from pgque_dagster.cli.commands.status import sparkline
from pgque_dagster.client import Client
from pgque_dagster.client.partitions import PartitionedConsumer
from tests.support.queues import PATIENCE_SECONDS

Pgque = Callable[..., Result]
Refused = Callable[..., str]


def publish(client: Client, payload: str) -> None:
    client.send("orders", payload)
    client.force_next_tick("orders")
    client.ticker()


def test_configure_sets_all_or_nothing_and_resets(pgque: Pgque, client: Client) -> None:
    def lag() -> str:
        with client.transaction() as connection:
            row = connection.execute(
                "select queue_ticker_max_lag::text from pgque.get_queue_info('orders')"
            ).fetchone()
        assert row is not None
        return str(row[0])

    before = lag()
    assert pgque("configure", "orders", "ticker_max_lag=9 seconds", "max_retries=2").exit_code == 0
    assert lag() == "00:00:09"
    assert pgque("configure", "orders", "ticker_max_lag=1 hour", "max_retries=few").exit_code == 1
    assert lag() == "00:00:09"
    assert pgque("configure", "orders", "ticker_max_lag=").exit_code == 0
    assert lag() == before


def test_configure_refuses_what_is_no_setting(pgque: Pgque, client: Client) -> None:
    result = pgque("configure", "orders", "max_retries")

    assert (result.exit_code, "NAME=VALUE" in result.stderr) == (2, True)


def test_pause_and_resume_are_seen_in_the_list(pgque: Pgque, client: Client) -> None:
    def ticker() -> str:
        (queue,) = json.loads(pgque("queues", "--json").stdout)
        return str(queue["ticker"])

    assert "pgque resume orders" in pgque("pause", "orders").output
    assert ticker() == "paused"
    pgque("resume", "orders")
    assert ticker() == "running"


def test_drain_waits_for_the_consumers(pgque: Pgque, client: Client) -> None:
    publish(client, "a")

    late = pgque("drain", "orders", "--timeout", "0s", "--json")
    assert (late.exit_code, json.loads(late.stdout)["left"]) == (3, {"billing": 1})

    batch = client.claim("orders", "billing", owner="test")
    assert batch is not None
    assert pgque("drain", "orders", "--timeout", "0s").exit_code == 3
    batch.ack()
    assert pgque("drain", "orders", "--timeout", "60s").output == "queue orders is drained\n"


def test_drain_counts_events_that_have_no_tick_yet(pgque: Pgque, client: Client) -> None:
    client.send("orders", "a")

    assert pgque("drain", "orders", "--timeout", "0s").exit_code == 3


def test_drain_of_a_consumer_waits_for_its_subconsumers(pgque: Pgque, client: Client) -> None:
    client.register_consumer("orders", "billing.host")
    with client.transaction() as connection:
        connection.execute("select pgque.register_subconsumer('orders', 'mailer', 'host', true)")
    publish(client, "a")
    with client.transaction() as connection:
        connection.execute(
            "select pgque.claim_coop('orders', 'mailer', 'host', 'worker', interval '1 minute',"
            " null, null, null, null, null)"
        )
        connection.execute("select pgque.seek('orders', 'billing.host', 'latest', true)")

    late = pgque("drain", "orders", "--consumer", "mailer", "--timeout", "0s", "--json")
    assert (late.exit_code, set(json.loads(late.stdout)["left"])) == (3, {"mailer.host"})
    billing = pgque("drain", "orders", "--consumer", "billing", "--timeout", "0s", "--json")
    assert set(json.loads(billing.stdout)["left"]) == {"billing"}


def test_drain_counts_what_a_slot_holds_back(pgque: Pgque, client: Client) -> None:
    keyed = PartitionedConsumer(client, "orders", "keyed", slots=1)
    keyed.subscribe(0)
    keyed.set_policy("pause")
    client.seek("orders", "billing", "latest", skip=True)
    for payload in ("a", "b"):
        client.send("orders", payload, partition_key="k")
    client.force_next_tick("orders")
    client.ticker()
    slot = keyed.claim(0, worker="w")
    assert slot is not None
    first, *_ = slot.receive()
    slot.nack(first.msg_id, retry_after=timedelta(hours=1))
    slot.ack()

    late = pgque("drain", "orders", "--consumer", "keyed", "--timeout", "0s", "--json")

    assert late.exit_code == 3
    assert json.loads(late.stdout)["left"] == {"keyed#0/1": 2}


def test_drain_refuses_names_that_do_not_exist(refused: Refused, client: Client) -> None:
    assert "Did you mean orders?" in refused("drain", "order")
    assert "nobody" in refused("drain", "orders", "--consumer", "nobody")


def test_a_live_lease_is_released_only_with_yes(
    pgque: Pgque, refused: Refused, client: Client
) -> None:
    assert pgque("leases", "list").output == "no batch is open\n"
    publish(client, "a")
    batch = client.claim("orders", "billing", owner="worker 1")
    assert batch is not None
    (lease,) = json.loads(pgque("leases", "list", "orders", "--json").stdout)
    assert (lease["owner"], lease["lease"]) == ("worker 1", "live")

    assert "worker 1" in refused("leases", "release", "orders", "billing")
    assert pgque("leases", "release", "orders", "billing", "--yes").exit_code == 0

    again = client.claim("orders", "billing", owner="worker 2")
    assert again is not None
    assert [event.payload for event in again.events()] == ["a"]


def test_releasing_without_a_lease_says_so(refused: Refused, client: Client) -> None:
    assert "no lease" in refused("leases", "release", "orders", "billing")


def test_repartition_tells_how_many_slots_there_are(pgque: Pgque, client: Client) -> None:
    with client.transaction() as connection:
        connection.execute("select pgque.subscribe_slot('orders', 'keyed', 0, 2)")
        connection.execute("select pgque.subscribe_slot('orders', 'keyed', 1, 2)")

    assert "has 4 slots" in pgque("repartition", "orders", "keyed", "4").output


def test_status_is_one_json_object(pgque: Pgque, client: Client) -> None:
    found = json.loads(pgque("status", "--json").stdout)

    assert set(found) == {"components", "queues", "consumers", "dead_letters"}
    assert found["consumers"][0]["open_batch"] is None


def test_json_may_stand_before_or_after_the_command(pgque: Pgque, client: Client) -> None:
    assert json.loads(pgque("--json", "queues").stdout) == [
        {**queue, "rotated_ago": pytest.approx(queue["rotated_ago"], abs=60)}
        for queue in json.loads(pgque("queues", "--json").stdout)
    ]


@pytest.mark.parametrize("option", ["--url", "--dsn", "-d"])
def test_the_database_may_be_named_after_the_command(database_url: str, option: str) -> None:
    assert CliRunner().invoke(main, ["queues", option, database_url]).exit_code == 0


def test_libpqs_variables_name_the_database(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from psycopg.conninfo import conninfo_to_dict

    parts = conninfo_to_dict(database_url)
    monkeypatch.delenv("PGQUE_URL", raising=False)
    for name, variable in (("host", "PGHOST"), ("port", "PGPORT"), ("dbname", "PGDATABASE"),
                           ("user", "PGUSER")):  # fmt: skip
        monkeypatch.setenv(variable, str(parts[name]))

    result = CliRunner().invoke(main, ["queues"])

    assert (result.exit_code, result.stderr) == (0, "")


def test_each_command_that_prints_takes_json() -> None:
    for command in main.commands.values():
        if command.name not in ("worker",):
            assert "--json" in CliRunner().invoke(main, [command.name or "", "--help"]).output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(pgque: Pgque, shell: str) -> None:
    assert "_PGQUE_COMPLETE" in pgque("completion", shell).output


def test_a_shell_completes_commands() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("pgque")],
        env={**os.environ, "_PGQUE_COMPLETE": "bash_complete", "COMP_WORDS": "pgque dra",
             "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip

    assert "drain" in done.stdout


def test_a_sparkline_shows_the_course() -> None:
    assert sparkline([0, 7, 14]) == "▁▄█"
    assert sparkline([0, 0]) == "▁▁"


def test_watching_needs_a_terminal(pgque: Pgque, client: Client) -> None:
    result = pgque("status", "--watch")

    assert (result.exit_code, "terminal" in result.stderr) == (2, True)


def test_watching_draws_the_screen_and_leaves_it_clean(client: Client, database_url: str) -> None:
    client.send("orders", "a")
    main_end, other_end = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "pgque_dagster.cli", "status", "--watch", "--every", "1s"],
        env={**os.environ, "PGQUE_URL": database_url, "COLUMNS": "120", "LINES": "40"},
        stdin=other_end,
        stdout=other_end,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        os.close(other_end)
        drawn = b""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while drawn.count(b"billing") < 2 and time.monotonic() < deadline:
            if select.select([main_end], [], [], 0.1)[0]:
                drawn += os.read(main_end, 65536)
        process.send_signal(signal.SIGINT)
        code = None
        while code is None and time.monotonic() < deadline:
            if select.select([main_end], [], [], 0.1)[0]:
                with suppress(OSError):  # closed at the other end
                    drawn += os.read(main_end, 65536)
            code = process.poll()
        assert process.stderr is not None
        errors = process.stderr.read()
    os.close(main_end)

    assert (code, errors) == (130, b"")
    assert "█" in drawn.decode()
    assert drawn.decode().rstrip().endswith("\x1b[?1049l")
