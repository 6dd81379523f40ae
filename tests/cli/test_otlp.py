"""`pgque metrics --otlp` pushes to a receiver of OTLP over HTTP."""

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from click.testing import Result
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from pgque_dagster import installer
from pgque_dagster.client import Client
from tests.support.queues import PATIENCE_SECONDS

Pgque = Callable[..., Result]
Received = queue.Queue[tuple[str, ExportMetricsServiceRequest]]


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


@contextmanager
def pushing(url: str, collector: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "pgque_dagster.cli", "metrics", "--otlp", collector]
    with subprocess.Popen(
        [*command, "--every", "1s"],
        env={**os.environ, "PGQUE_URL": url},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def metrics(request: ExportMetricsServiceRequest) -> dict[str, Any]:
    (resource,) = request.resource_metrics
    (scope,) = resource.scope_metrics
    return {metric.name: metric for metric in scope.metrics}


def test_gauges_and_counters_are_pushed_with_their_labels(
    database_url: str, client: Client, collector: str, received: Received
) -> None:
    client.send_batch("orders", ["a", "b"])

    with pushing(database_url, collector) as process:
        path, request = received.get(timeout=PATIENCE_SECONDS)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 130

    assert path == "/v1/metrics"
    found = metrics(request)
    (sent,) = found["pgque.message.sent_total"].sum.data_points
    assert sent.as_double == 2
    assert [(label.key, label.value.string_value) for label in sent.attributes] == [
        ("queue", "orders")
    ]
    assert found["pgque.message.sent_total"].sum.is_monotonic
    (depth,) = found["pgque.queue.depth"].gauge.data_points
    assert depth.as_double == 2
    (up,) = found["pgque.up"].gauge.data_points
    assert up.as_double == 1


@pytest.mark.usefixtures("client")
def test_a_database_that_does_not_answer_is_pushed_as_down(
    database_url: str, collector: str, received: Received
) -> None:
    with pushing(database_url, collector):
        received.get(timeout=PATIENCE_SECONDS)
        installer.uninstall(database_url, force=True)
        found = metrics(received.get(timeout=PATIENCE_SECONDS)[1])
        while len(found) > 1:
            found = metrics(received.get(timeout=PATIENCE_SECONDS)[1])

    assert [(name, metric.gauge.data_points[0].as_double) for name, metric in found.items()] == [
        ("pgque.up", 0)
    ]


def test_a_collector_that_is_away_is_named_and_tried_again(
    database_url: str, client: Client
) -> None:
    with pushing(database_url, "http://127.0.0.1:1") as process:
        assert process.stderr is not None
        assert "http://127.0.0.1:1/v1/metrics" in process.stderr.readline()
        assert process.stderr.readline().startswith("pgque: ")
        assert process.poll() is None


def test_what_is_no_url_is_refused(pgque: Pgque, client: Client) -> None:
    result = pgque("metrics", "--otlp", "collector:4318")

    assert (result.exit_code, "http://collector:4318" in result.stderr) == (1, True)


def test_serving_and_pushing_are_two_processes(pgque: Pgque, client: Client) -> None:
    result = pgque("metrics", "--otlp", "http://collector:4318", "--port", "9187")

    assert (result.exit_code, "--port or --otlp" in result.stderr) == (2, True)
