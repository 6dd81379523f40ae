"""Metrics of handlers by the public API of OpenTelemetry, in applications that use it."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from ..tracing import consumer_span
from .delivery import Delivery, Failed


def is_observed() -> bool:
    """Whether the application uses OpenTelemetry."""
    return "opentelemetry.trace" in sys.modules or "opentelemetry.metrics" in sys.modules


@contextmanager
def observed(message: Delivery, consumer: str, failed: Failed) -> Iterator[None]:
    """Runs the block, which handles the message, in a span, and counts and times it."""
    metrics = sys.modules.get("opentelemetry.metrics")
    if not is_observed():
        yield
        return
    started = time.monotonic()
    outcome = "error"
    try:
        with consumer_span(message.queue, consumer, message.traceparent):
            yield
        outcome = "failed" if message in failed else "done"
    finally:
        if metrics is not None:
            attributes = {"queue": message.queue, "consumer": consumer, "outcome": outcome}
            counter, durations = _instruments(metrics)
            counter.add(1, attributes)
            durations.record(time.monotonic() - started, attributes)


@cache
def _instruments(metrics: Any) -> tuple[Any, Any]:
    meter = metrics.get_meter("pgque")
    return (
        meter.create_counter("pgque.consumer.messages", description="Handled messages"),
        meter.create_histogram("pgque.consumer.duration", "s", "How long a handler ran"),
    )
