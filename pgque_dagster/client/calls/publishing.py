"""Publishing many events: the fields of their rows, and COPY."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..encoding import Payload, encode
from ..errors import MalformedPayload
from ..models import Event, Message
from ..tracing import ProducerSpan
from .call import Call, Copy, Steps, first, nothing

_BLOCK_BYTES = 1 << 16


def copy_messages(queue: str, messages: Iterable[Message]) -> Steps[int]:
    """Sends events of another queue by COPY, with their types, payloads and extra fields."""
    table = yield from event_table(queue)
    rows = Rows(_line(m.type, m.payload, m.extra1, m.extra2, m.extra3, m.extra4) for m in messages)
    columns = "ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4"
    yield Copy(f"copy {table} ({columns}) from stdin (encoding 'UTF8')", rows.blocks())
    return rows.count


def insert_messages(queue: str, messages: Sequence[Message]) -> Call[None]:
    """Sends events of another queue with their times, too."""
    return Call(
        "select pgque.insert_event_raw(%s, null, e.at, null, null, e.type, e.data, e.extra1,"
        " e.extra2, e.extra3, e.extra4) from unnest(%b::timestamptz[], %b::text[], %b::text[],"
        " %b::text[], %b::text[], %b::text[], %b::text[]) with ordinality"
        " as e (at, type, data, extra1, extra2, extra3, extra4, nr) order by e.nr",
        (
            queue,
            [m.created_at for m in messages],
            [m.type for m in messages],
            [m.payload for m in messages],
            [m.extra1 for m in messages],
            [m.extra2 for m in messages],
            [m.extra3 for m in messages],
            [m.extra4 for m in messages],
        ),
        nothing,
    )


def current_event_table(queue: str) -> Call[Any]:
    """The table to COPY a queue's events into; refuses a queue that takes none."""
    return Call("select pgque.current_event_table(%s)", (queue,), first)


def event_table(queue: str) -> Steps[str]:
    """The same, within a COPY."""
    # Read in the transaction of the COPY, because rotation closes tables to writers.
    table = yield current_event_table(queue)
    # As psycopg reads text with the encoding SQL_ASCII.
    return table.decode() if isinstance(table, bytes) else table


def fields_of(
    payload: Payload | Event, type: str, span: ProducerSpan | None
) -> tuple[str | None, str, str | None, str | None]:
    """Returns the type, the payload and the extra fields as they are stored."""
    traceparent = span.traceparent if span else None
    if not isinstance(payload, Event):
        return type, encode(payload), traceparent, None
    event_type = type if payload.type is None else payload.type
    if payload.key is None:
        return event_type, encode(payload.payload), traceparent, None
    return event_type, encode(payload.payload), payload.key, traceparent


def lines(
    payloads: Iterable[Payload | Event], type: str, span: ProducerSpan | None
) -> Iterator[str]:
    """Yields the rows of events for COPY."""
    # What surrounds a payload that has no type and key of its own.
    type_field, _, *extras = map(_copied, fields_of("", type, span))
    start, end = f"{type_field}\t", "\t".join(["", *extras])
    for payload in payloads:
        if isinstance(payload, Event):
            yield _line(*fields_of(payload, type, span))
        else:
            yield start + _copied(encode(payload)) + end


def _line(*fields: str | None) -> str:
    return "\t".join(map(_copied, fields))


class Rows:
    """Rows in the text format of COPY."""

    def __init__(self, rows: Iterable[str]) -> None:
        self.count = 0
        self._rows = rows

    def blocks(self) -> Iterator[bytes]:
        """Yields the rows in blocks, and counts them."""
        lines: list[str] = []
        size = 0
        for line in self._rows:
            lines.append(line)
            size += len(line)
            if size > _BLOCK_BYTES:
                yield _joined(lines)
                lines, size = [], 0
            self.count += 1
        if lines:
            yield _joined(lines)


def _copied(field: str | None) -> str:
    if field is None:
        return r"\N"
    return (
        field.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    )


def _joined(lines: list[str]) -> bytes:
    text = "\n".join(lines)
    if "\0" in text:
        raise MalformedPayload(
            "a payload contains a zero byte, which PostgreSQL cannot store in text",
            "Send it as bytes.",
        )
    return f"{text}\n".encode()
