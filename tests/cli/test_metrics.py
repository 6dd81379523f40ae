"""`pgque health` and `pgque metrics`: printed and served; the dashboard and rules of deploy/."""

import json
import re
import signal
import socket
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import yaml  # type: ignore[import-untyped]
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from pgque_dagster import installer
from pgque_dagster.client import Client
from tests.cli.conftest import Pgque, started
from tests.support.queues.events import claim, publish
from tests.support.queues.sql import PATIENCE_SECONDS

_DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
_RULES = _DEPLOY / "prometheus" / "alerts.yaml"
_METRIC = re.compile(r"\bpgque_\w+")


def test_health_reports_failed_checks(pgque: Pgque, client: Client) -> None:
    well = pgque("health")
    assert (well.exit_code, well.output) == (0, "all 13 checks passed\n")
    assert "consumer_lag:billing" in pgque("health", "--all").output
    client.create_queue("mails")
    client.configure_queue("mails", ticker_paused=True)
    assert pgque("health", "orders").output == well.output
    assert "paused" in pgque("health", "mails").stdout
    none = pgque("health", "order")
    assert (none.exit_code, "there is no queue order: `pgque status`" in none.stdout) == (3, True)
    client.drop_queue("mails")
    for age, code in (("3 minutes", 0), ("1 hour", 3)):
        with client.transaction() as connection:
            connection.execute("update pgque.tick_log set tick_time = now() - %s::interval", [age])
        result = pgque("health")
        assert (result.exit_code, "ticker_running" in result.stdout) == (code, True)


def test_metrics_are_in_the_text_format_of_prometheus(pgque: Pgque, client: Client) -> None:
    client.send("orders", "a")
    output = pgque("metrics").stdout
    families = {family.name: family for family in text_string_to_metric_families(output)}
    assert families["pgque_up"].samples[0].value == 1
    (depth,) = families["pgque_queue_depth"].samples
    assert depth.labels == {"queue": "orders"}
    assert families["pgque_message_sent"].type == "counter"
    sent = [metric for metric in client.metrics() if metric.name == "pgque.message.sent_total"]
    assert [(metric.labels, metric.value) for metric in sent] == [({"queue": "orders"}, 1)]
    (stats,) = client.queue_stats()
    assert (stats.queue, stats.depth, stats.consumers, stats.dead_letters) == ("orders", 1, 1, 0)


def test_metrics_are_served_and_say_when_the_database_is_away(
    database_url: str, client: Client
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    page = f"http://127.0.0.1:{port}/metrics"
    with started(database_url, "metrics", "--port", str(port)) as process:
        assert process.stderr is not None
        assert f":{port}/metrics" in process.stderr.readline()
        well = urlopen(page, timeout=PATIENCE_SECONDS).read().decode()
        accept = {"accept": "application/openmetrics-text; version=1.0.0"}
        asked = urlopen(Request(page, headers=accept), timeout=PATIENCE_SECONDS).read().decode()
        installer.uninstall(database_url, force=True)
        away = urlopen(page, timeout=PATIENCE_SECONDS).read().decode()
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_SECONDS)

    assert "pgque_up 1.0" in well
    assert 'pgque_queue_depth{queue="orders"} 0.0' in well
    assert "pgque_up 0.0" in away
    families = {family.name: family.type for family in openmetrics_families(asked)}
    assert families["pgque_message_dead_lettered"] == "counter"
    assert families["pgque_queue_dead_letters"] == "gauge"


class TestDeploy:
    def dashboard(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((_DEPLOY / "grafana" / "pgque.json").read_text())
        return loaded

    def test_every_metric_is_one_that_is_printed(self, pgque: Pgque, client: Client) -> None:
        publish(client, ["a"])
        claim(client, consumer="billing").ack()
        with client.transaction() as connection:
            connection.execute(
                "select pgque.note_verified('orders', 'billing', 't', null, 1, 1, null, null)"
            )
        families = text_string_to_metric_families(pgque("metrics").stdout)
        printed = {sample.name for family in families for sample in family.samples}
        assert set(_METRIC.findall(json.dumps(self.dashboard()))) <= printed
        alerts = [rule["expr"] for rule in yaml.safe_load(_RULES.read_text())["groups"][0]["rules"]]
        assert set(_METRIC.findall(" ".join(alerts))) <= printed
