"""A trace goes from the sender to the handler."""

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from pgque_dagster.client import Client, Delivery, Event
from tests.client.consumer.support import Queue
from tests.support.queues import rows, tick

EXPORTER = InMemorySpanExporter()


@pytest.fixture(scope="module", autouse=True)
def providers() -> None:
    """An application sets these once in a process."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
    trace.set_tracer_provider(provider)


@pytest.fixture(autouse=True)
def spans() -> Iterator[None]:
    EXPORTER.clear()
    yield


def finished(kind: SpanKind) -> list[ReadableSpan]:
    return [span for span in EXPORTER.get_finished_spans() if span.kind == kind]


def context(span: ReadableSpan) -> tuple[int, int]:
    found = span.get_span_context()
    assert found is not None
    return found.trace_id, found.span_id


def parent(span: ReadableSpan) -> tuple[int, int]:
    assert span.parent is not None
    return span.parent.trace_id, span.parent.span_id


def send_all_ways(client: Client) -> None:
    with trace.get_tracer("test").start_as_current_span("request"):
        client.send("q", "1")
        client.send("q", "2", partition_key="k")
        client.send_batch("q", ["3", Event("4", key="k")])
        client.copy_events("q", ["5", Event("6", key="k")])


def test_a_handler_continues_the_trace_of_the_sender(q: Queue) -> None:
    consumer = q.consumer()
    handled: list[Delivery] = []
    consumer.on()(handled.append)
    send_all_ways(q.client)
    tick(q.db)
    q.run(consumer)

    producers, consumers = finished(SpanKind.PRODUCER), finished(SpanKind.CONSUMER)
    (request,) = [span for span in EXPORTER.get_finished_spans() if span.name == "request"]
    assert [span.name for span in producers] == ["send q"] * 4
    assert {parent(span) for span in producers} == {context(request)}
    assert [span.name for span in consumers] == ["process q"] * 6
    assert {parent(span) for span in consumers} == {context(span) for span in producers}
    assert [message.key for message in handled] == [None, "k", None, "k", None, "k"]

    stored = rows(q.db, "select ev_extra1, ev_extra2 from pgque.event order by ev_id")
    contexts = [second or first for first, second in stored]
    assert all(text.startswith("00-") and len(text) == 55 for text in contexts)
    assert [first for first, second in stored if second] == ["k"] * 3


def test_outside_of_a_trace_nothing_is_stored(q: Queue) -> None:
    q.client.send("q", "1")
    assert rows(q.db, "select ev_extra1, ev_extra2 from pgque.event") == [(None, None)]
    assert finished(SpanKind.PRODUCER) == []
