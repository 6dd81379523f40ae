"""`pgque metrics`: the metrics of all queues in the Prometheus text format."""

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import click

from ...client import PgqueError
from ...client.models import Metric
from ..app import command
from ..database import Database
from ..errors import one_line, without_passwords
from ..printing import show_rows, wants_json

# OpenMetrics drops _total from the name of a counter's family, but in SQL this gauge has that name.
_RENAMED = {"pgque.message.dead_lettered": "pgque.queue.dead_letters"}


@command(
    "pgque metrics",
    "pgque metrics --port 9187",
    "pgque metrics > /var/lib/node_exporter/pgque.prom",
)
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Serve http://HOST:PORT/metrics until Ctrl-C."
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="With --port: the address to listen on."
)
def metrics(database: Database, port: int | None, host: str) -> None:
    """Print the metrics of all queues and consumers for Prometheus, or serve them.

    While the database does not answer, pgque_up is served as 0. deploy/grafana/ has a dashboard,
    and deploy/prometheus/ has alert rules. An OpenTelemetry collector reads the page with its
    receiver `prometheus`.
    """
    if wants_json() and port is None:
        rows = [{**vars(metric), "labels": dict(metric.labels)} for metric in _read(database)]
        show_rows(rows, "")
        return
    try:
        import prometheus_client
    except ImportError as error:
        raise PgqueError(
            "prometheus_client is missing", "pip install 'pgque-dagster[metrics]'"
        ) from error
    if port is None:
        registry = _registry(lambda: [_up(True), *_read(database)])
        click.echo(prometheus_client.generate_latest(registry), nl=False)
        return
    registry = _registry(partial(_read_or_tell, database))
    server, thread = prometheus_client.start_http_server(port, host, registry)
    try:
        click.echo(f"pgque: serving http://{host}:{port}/metrics until Ctrl-C", err=True)
        threading.Event().wait()
    finally:
        server.shutdown()
        thread.join()


def _read(database: Database) -> list[Metric]:
    with database.client() as client:
        return client.metrics()


def _read_or_tell(database: Database) -> list[Metric]:
    """Returns the metrics; prints the problem if the database does not answer."""
    try:
        return [_up(True), *_read(database)]
    except PgqueError as problem:
        click.echo(f"pgque: {without_passwords(one_line(problem))}", err=True)
        return [_up(False)]


def _up(answers: bool) -> Metric:
    return Metric("pgque.up", "gauge", float(answers), {})


def _registry(read: Callable[[], Iterable[Metric]]) -> Any:
    """Returns a Prometheus registry that reads the metrics at each request."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    class Queues:
        def describe(self) -> Iterable[Any]:
            return ()

        def collect(self) -> Iterable[Any]:
            by_name: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
            for metric in read():
                kind = CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily
                name = _RENAMED.get(metric.name, metric.name).replace(".", "_")
                labels = sorted(metric.labels)
                family = by_name.setdefault(name, kind(name, metric.name, labels=labels))
                family.add_metric([metric.labels[label] for label in labels], metric.value)
            return by_name.values()

    registry = CollectorRegistry()
    registry.register(Queues())
    return registry
