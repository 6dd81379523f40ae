"""Traces by the public API of OpenTelemetry, in applications that use it.

The W3C context of the sender's span is stored with the event: in `ev_extra1`, or in `ev_extra2` if
the event has a partition key, which is in `ev_extra1`. OpenTelemetry is not imported here, so that
applications without it do not need it: those that trace have imported it.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .models import Message

_TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_NAME = "pgque"
_NO_SPAN = nullcontext()


def is_traceparent(text: str | None) -> bool:
    """Whether a field holds the W3C context of a span."""
    return text is not None and _TRACEPARENT.fullmatch(text) is not None


class ProducerSpan:
    """The span of a call that sends. It is a child of the application's span.

    Attributes:
        traceparent: the span's W3C context.
    """

    def __init__(self, queue: str) -> None:
        trace = sys.modules["opentelemetry.trace"]
        self._span = trace.get_tracer(_NAME).start_span(
            f"send {queue}", kind=trace.SpanKind.PRODUCER, attributes=_attributes(queue)
        )
        self.traceparent = _traceparent(self._span)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Makes the span the present one in the block, and ends it."""
        trace = sys.modules["opentelemetry.trace"]
        with trace.use_span(self._span, end_on_exit=True):
            yield


def producer_span(queue: str) -> ProducerSpan | None:
    """Starts the span of a call that sends; None unless the application is in a trace."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or not trace.get_current_span().get_span_context().is_valid:
        return None
    return ProducerSpan(queue)


def consumer_span(queue: str, consumer: str, message: "Message") -> AbstractContextManager[Any]:
    """Returns a span that continues the trace of the message's sender.

    Without OpenTelemetry in the application, it is a context that does nothing.
    """
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return _NO_SPAN
    span: AbstractContextManager[Any] = trace.get_tracer(_NAME).start_as_current_span(
        f"process {queue}",
        context=_context(trace, message.traceparent),
        kind=trace.SpanKind.CONSUMER,
        attributes={**_attributes(queue), "messaging.consumer.group.name": consumer},
    )
    return span


def _attributes(queue: str) -> dict[str, str]:
    return {"messaging.system": _NAME, "messaging.destination.name": queue}


def _traceparent(span: Any) -> str:
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def _context(trace: Any, traceparent: str | None) -> Any:
    """Returns the context of the sender's span; None if there is none."""
    if traceparent is None:
        return None
    _, trace_id, span_id, flags = traceparent.split("-")
    sender = trace.SpanContext(
        int(trace_id, 16), int(span_id, 16), True, trace.TraceFlags(int(flags, 16))
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(sender))
