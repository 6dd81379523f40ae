"""What is wrong and what to do, on the command line: `pgque health` and `pgque metrics`."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from urllib.request import urlopen

import pytest
from click.testing import Result
from prometheus_client.parser import text_string_to_metric_families

from pgque_dagster import installer
from pgque_dagster.client import Client

Pgque = Callable[..., Result]


def test_health_is_silent_about_what_is_well(pgque: Pgque, client: Client) -> None:
    result = pgque("health")

    assert (result.exit_code, result.output) == (0, "all 11 checks are well\n")


def test_health_shows_all_on_demand(pgque: Pgque, client: Client) -> None:
    assert "consumer_lag:billing" in pgque("health", "--all").output


@pytest.mark.parametrize(("age", "code"), [("3 minutes", 0), ("1 hour", 3)])
def test_health_fails_when_something_is_critical(
    pgque: Pgque, client: Client, age: str, code: int
) -> None:
    with client.transaction() as connection:
        connection.execute("update pgque.tick_log set tick_time = now() - %s::interval", [age])

    result = pgque("health")

    assert (result.exit_code, "ticker_running" in result.stdout) == (code, True)


@pytest.mark.usefixtures("client")
def test_metrics_are_in_the_text_format_of_prometheus(pgque: Pgque) -> None:
    families = {
        family.name: family for family in text_string_to_metric_families(pgque("metrics").stdout)
    }

    assert families["pgque_up"].samples[0].value == 1
    (depth,) = families["pgque_queue_depth"].samples
    assert depth.labels == {"queue": "orders"}
    assert families["pgque_message_sent"].type == "counter"


def test_metrics_are_served_and_say_when_the_database_is_away(
    database_url: str, client: Client
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "pgque_dagster.cli", "metrics", "--port", str(port)]
    with subprocess.Popen(
        command, env={**os.environ, "PGQUE_URL": database_url}, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert f":{port}/metrics" in process.stderr.readline()
        well = urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
        installer.uninstall(database_url, force=True)
        away = urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
        process.send_signal(signal.SIGTERM)
        process.wait(60)

    assert "pgque_up 1.0" in well
    assert 'pgque_queue_depth{queue="orders"} 0.0' in well
    assert "pgque_up 0.0" in away


def test_the_client_gives_metrics_with_their_labels(client: Client) -> None:
    client.send("orders", "a")
    found = {
        metric.value
        for metric in client.metrics()
        if metric.name == "pgque.message.sent_total" and metric.labels == {"queue": "orders"}
    }

    assert found == {1}


def test_the_client_gives_statistics(client: Client) -> None:
    client.send("orders", "a")
    (stats,) = client.queue_stats()

    assert (stats.queue, stats.depth, stats.consumers, stats.dead_letters) == ("orders", 1, 1, 0)
