"""Pushes metrics to a collector of OpenTelemetry, by OTLP over HTTP."""

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from .. import __version__
from ..client import InvalidArgument, PgqueError
from ..client.models import Metric

_PATH = "/v1/metrics"


class Collector:
    """A collector, to which OTEL_EXPORTER_OTLP_HEADERS and the like apply.

    Args:
        url: such as http://collector:4318; the usual path is added if there is none.

    Raises:
        InvalidArgument: if it is no URL of HTTP.
        PgqueError: if the exporter of OpenTelemetry is not installed.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidArgument(
                f"{url} is not the URL of a collector", "Write http://collector:4318."
            )
        try:
            from opentelemetry.exporter.otlp.proto.http import metric_exporter
        except ImportError as error:
            raise PgqueError(
                "the exporter of OpenTelemetry is missing", "pip install 'pgque-dagster[otlp]'"
            ) from error
        self.url = parts._replace(path=parts.path.rstrip("/") or _PATH).geturl()
        self._exporter = metric_exporter.OTLPMetricExporter(endpoint=self.url)

    def push(self, metrics: Sequence[Metric]) -> None:
        """Sends the metrics. The exporter tries again for some seconds, and logs why it failed."""
        from opentelemetry.sdk.metrics import export
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        scope = export.ScopeMetrics(
            InstrumentationScope("pgque", __version__), _instruments(metrics, time.time_ns()), ""
        )
        resource = export.ResourceMetrics(Resource.create({"service.name": "pgque"}), [scope], "")
        self._exporter.export(export.MetricsData([resource]))


def _instruments(metrics: Sequence[Metric], now: int) -> list[Any]:
    from opentelemetry.sdk.metrics import export

    points: dict[tuple[str, str], list[export.NumberDataPoint]] = defaultdict(list)
    for metric in metrics:
        # 0: since when a counter counts is unknown.
        point = export.NumberDataPoint(metric.labels, 0, now, metric.value)
        points[metric.name, metric.type].append(point)
    return [
        export.Metric(
            name,
            None,
            None,
            export.Sum(found, export.AggregationTemporality.CUMULATIVE, is_monotonic=True)
            if type == "counter"
            else export.Gauge(found),
        )
        for (name, type), found in points.items()
    ]
