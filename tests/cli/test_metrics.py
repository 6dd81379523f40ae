"""`pgque health` and `pgque metrics`: printed, served and pushed; what deploy/ makes of them."""

import json
import queue
import re
import signal
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import yaml  # type: ignore[import-untyped]
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from pgque_dagster import installer
from pgque_dagster.client import Client
from tests.cli.conftest import Pgque, Refused, started
from tests.support.events import claim, publish
from tests.support.queues import PATIENCE_SECONDS

Received = queue.Queue[tuple[str, ExportMetricsServiceRequest]]

_DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
_RULES = _DEPLOY / "prometheus" / "alerts.yaml"
_METRIC = re.compile(r"\bpgque_\w+")


def test_health_tells_what_is_not_well(pgque: Pgque, client: Client) -> None:
    well = pgque("health")
    assert (well.exit_code, well.output) == (0, "all 21 checks are well\n")
    assert "consumer_lag:billing" in pgque("health", "--all").output
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


@pytest.fixture
def received() -> Received:
    return queue.Queue()


@pytest.fixture
def collector(received: Received) -> Iterator[str]:
    """The URL of a receiver, which keeps the path and the content of each request."""

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.put((self.path, ExportMetricsServiceRequest.FromString(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(PATIENCE_SECONDS)


def metrics(request: ExportMetricsServiceRequest) -> dict[str, Any]:
    (resource,) = request.resource_metrics
    (scope,) = resource.scope_metrics
    return {metric.name: metric for metric in scope.metrics}


class TestOtlp:
    def test_metrics_are_pushed_with_their_labels_and_as_down_without_an_answer(
        self, database_url: str, client: Client, collector: str, received: Received
    ) -> None:
        client.send_batch("orders", ["a", "b"])
        push = ("metrics", "--otlp", collector, "--every", "1s")
        with started(database_url, *push, stdout=None) as process:
            path, request = received.get(timeout=PATIENCE_SECONDS)
            installer.uninstall(database_url, force=True)
            down = metrics(received.get(timeout=PATIENCE_SECONDS)[1])
            while len(down) > 1:
                down = metrics(received.get(timeout=PATIENCE_SECONDS)[1])
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_SECONDS) == 130

        assert path == "/v1/metrics"
        found = metrics(request)
        (sent,) = found["pgque.message.sent_total"].sum.data_points
        assert sent.as_double == 2
        labels = [(label.key, label.value.string_value) for label in sent.attributes]
        assert labels == [("queue", "orders")]
        assert found["pgque.message.sent_total"].sum.is_monotonic
        for name, value in (("pgque.queue.depth", 2), ("pgque.up", 1)):
            (point,) = found[name].gauge.data_points
            assert point.as_double == value
        (up,) = down.values()
        assert (up.name, up.gauge.data_points[0].as_double) == ("pgque.up", 0)

    def test_a_collector_that_is_away_is_named_and_tried_again(
        self, database_url: str, client: Client
    ) -> None:
        push = ("metrics", "--otlp", "http://127.0.0.1:1/", "--every", "1s")
        with started(database_url, *push, stdout=None) as process:
            assert process.stderr is not None
            assert "http://127.0.0.1:1/v1/metrics" in process.stderr.readline()
            assert process.stderr.readline().startswith("pgque: ")
            assert process.poll() is None

    def test_wrong_arguments_are_refused(
        self, refused: Refused, misused: Refused, client: Client
    ) -> None:
        assert "http://collector:4318" in refused("metrics", "--otlp", "collector:4318")
        both = ("--otlp", "http://collector:4318", "--port", "9187")
        assert "--port or --otlp" in misused("metrics", *both)


class TestDeploy:
    def dashboard(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((_DEPLOY / "grafana" / "pgque.json").read_text())
        return loaded

    def test_every_metric_is_one_that_is_printed(self, pgque: Pgque, client: Client) -> None:
        publish(client, ["a"])
        claim(client, consumer="billing").ack()
        families = text_string_to_metric_families(pgque("metrics").stdout)
        printed = {sample.name for family in families for sample in family.samples}
        assert set(_METRIC.findall(json.dumps(self.dashboard()))) <= printed
        alerts = [rule["expr"] for rule in yaml.safe_load(_RULES.read_text())["groups"][0]["rules"]]
        assert set(_METRIC.findall(" ".join(alerts))) <= printed

    def test_panels_have_numbers_of_their_own_and_do_not_overlap(self) -> None:
        panels = self.dashboard()["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
        assert len(places) == len(panels)
