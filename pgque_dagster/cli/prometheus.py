"""Metrics in the text format of Prometheus, printed or served."""

import threading
from collections.abc import Callable, Iterable
from typing import Any

from ..client import PgqueError
from ..client.models import Metric

Read = Callable[[], Iterable[Metric]]

# OpenMetrics gives a counter's family the name without _total, which this gauge has in SQL.
_RENAMED = {"pgque.message.dead_lettered": "pgque.queue.dead_letters"}


def text_of(read: Read) -> str:
    """Returns the metrics in the text format of Prometheus."""
    registry = _registry(read)
    from prometheus_client import generate_latest

    return generate_latest(registry).decode()


def serve(read: Read, host: str, port: int, announce: Callable[[], None]) -> None:
    """Serves the metrics until Ctrl-C, and reads them each time that the page is read.

    Args:
        read: returns the metrics.
        host: the address to listen on.
        port: the port to listen on.
        announce: is called once the server listens.
    """
    registry = _registry(read)
    from prometheus_client import start_http_server

    server, thread = start_http_server(port, host, registry)
    try:
        announce()
        threading.Event().wait()
    finally:
        server.shutdown()
        thread.join()


def _registry(read: Read) -> Any:
    try:
        from prometheus_client import CollectorRegistry
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    except ImportError as error:
        raise PgqueError(
            "prometheus_client is missing", "pip install 'pgque-dagster[metrics]'"
        ) from error

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
