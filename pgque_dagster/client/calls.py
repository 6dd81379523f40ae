"""The SQL that the client sends, without any input or output of its own.

A call is a text, its parameters, and how to read the rows. A client runs it on whatever kind of
connection it has, so a synchronous and an asynchronous one share this module.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import timedelta
from typing import Any, Generic, LiteralString, TypeVar

from .errors import InvalidArgument
from .models import (
    BatchInfo,
    ConsumerInfo,
    DeadLetter,
    DeadLetterCount,
    Lease,
    LeaseInfo,
    Limits,
    Message,
    QueueInfo,
    ReadPlan,
)

T = TypeVar("T")
Row = tuple[Any, ...]
Payload = str | Mapping[str, Any] | Sequence[Any]


@dataclass(frozen=True)
class Call(Generic[T]):
    """One statement: its text, its parameters, and what its rows mean."""

    sql: LiteralString
    params: tuple[object, ...]
    parse: Callable[[list[Row]], T]


def _first(rows: list[Row]) -> Any:
    return rows[0][0]


def _nothing(rows: list[Row]) -> None:
    return None


def encode(payload: Payload) -> str:
    """Writes a payload as it is stored: text as it is, anything else as JSON.

    Raises:
        InvalidArgument: if the value is neither text nor what JSON can express.
    """
    if isinstance(payload, str):
        return payload
    try:
        return json.dumps(payload, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"the payload is no JSON value: {error}",
            "Send text, or lists and dicts of plain values.",
        ) from error


def send(queue: str, payload: Payload, type: str, check_json: bool) -> Call[int]:
    """One event; with `check_json`, refused by the server unless it is JSON."""
    if check_json:
        return Call(
            "select pgque.send(%s::text, %s::text, %s::jsonb)",
            (queue, type, encode(payload)),
            _first,
        )
    return Call(
        "select pgque.send(%s::text, %s::text, %s::text)", (queue, type, encode(payload)), _first
    )


def send_batch(queue: str, payloads: Sequence[Payload], type: str) -> Call[list[int]]:
    """Many events of one type."""
    return Call(
        # Binary: an array of JSON as text is mostly escapes.
        "select pgque.send_batch(%s::text, %s::text, %b::text[])",
        (queue, type, [encode(payload) for payload in payloads]),
        _first,
    )


def version() -> Call[str]:
    """The installed schema's version."""
    return Call("select pgque.version()", (), _first)


def create_queue(queue: str) -> Call[bool]:
    """A new queue; False if it existed."""
    return Call("select pgque.create_queue(%s) = 1", (queue,), _first)


def drop_queue(queue: str, force: bool) -> Call[None]:
    """A queue's end."""
    return Call("select pgque.drop_queue(%s, %s)", (queue, force), _nothing)


def configure_queue(queue: str, parameter: str, value: str | None) -> Call[None]:
    """One parameter of a queue."""
    return Call("select pgque.set_queue_config(%s, %s, %s)", (queue, parameter, value), _nothing)


def register_consumer(queue: str, consumer: str) -> Call[bool]:
    """A consumer at the last tick; False if it was registered."""
    return Call("select pgque.register_consumer(%s, %s) = 1", (queue, consumer), _first)


def unregister_consumer(queue: str, consumer: str) -> Call[None]:
    """A consumer's end."""
    return Call("select pgque.unregister_consumer(%s, %s)", (queue, consumer), _nothing)


def next_batch(queue: str, consumer: str, limits: Limits) -> Call[int | None]:
    """The open or next batch, without a lease."""
    return Call(
        "select batch_id from pgque.next_batch_custom(%s, %s, %s, %s, %s, %s)",
        (queue, consumer, *astuple(limits)),
        _first,
    )


def claim(
    queue: str, consumer: str, owner: str, ttl: timedelta, limits: Limits, batch_id: int | None
) -> Call[Lease | None]:
    """The open or next batch under a lease."""

    def parse(rows: list[Row]) -> Lease | None:
        if rows[0][0] is None:
            return None
        batch, epoch, until, prev_tick, tick = rows[0]
        return Lease(batch, owner, epoch, until, prev_tick, tick)

    return Call(
        "select batch_id, epoch, lease_until, prev_tick_id, cur_tick_id "
        "from pgque.claim_batch(%s, %s, %s, %s, %s, %s, %s, %s, %s)",
        (queue, consumer, owner, ttl, *astuple(limits), batch_id),
        parse,
    )


def renew(lease: Lease, ttl: timedelta) -> Call[Any]:
    """A lease's new end."""
    return Call(
        "select pgque.renew_batch(%s, %s, %s, %s)",
        (lease.batch_id, lease.owner, lease.epoch, ttl),
        _first,
    )


def ack(lease: Lease) -> Call[None]:
    """A leased batch's end."""
    return Call(
        "select pgque.ack_batch(%s, %s, %s)", (lease.batch_id, lease.owner, lease.epoch), _nothing
    )


def release(lease: Lease) -> Call[None]:
    """A claim given back."""
    return Call(
        "select pgque.release_batch(%s, %s, %s)",
        (lease.batch_id, lease.owner, lease.epoch),
        _nothing,
    )


def finish_batch(batch_id: int) -> Call[None]:
    """An unleased batch's end."""
    return Call("select pgque.finish_batch(%s)", (batch_id,), _nothing)


def nack_batch(
    batch_id: int, msg_ids: Sequence[int], after: timedelta, reason: str | None
) -> Call[int]:
    """Events again later, or to the dead letters when their retries are used up."""
    return Call(
        "select pgque.nack_batch(%s, %s::bigint[], %s, %s)",
        (batch_id, list(msg_ids), after, reason),
        _first,
    )


def dead_letter_batch(batch_id: int, msg_ids: Sequence[int], reason: str) -> Call[int]:
    """Events to the dead letters."""
    return Call(
        "select pgque.dead_letter_batch(%s, %s::bigint[], %s)",
        (batch_id, list(msg_ids), reason),
        _first,
    )


def lease_info(queue: str, consumer: str) -> Call[LeaseInfo | None]:
    """Who has the open batch."""
    return Call(
        "select batch_id, owner, lease_until, epoch, is_live from pgque.get_lease_info(%s, %s)",
        (queue, consumer),
        lambda rows: LeaseInfo(*rows[0]) if rows else None,
    )


def batch_info(batch_id: int) -> Call[BatchInfo]:
    """What an open batch spans."""
    return Call(
        "select queue_name, consumer_name, batch_start, batch_end, prev_tick_id, tick_id, lag, "
        "seq_start, seq_end from pgque.get_batch_info(%s)",
        (batch_id,),
        lambda rows: BatchInfo(*rows[0]),
    )


def batch_events(batch_id: int) -> Call[list[Message]]:
    """All events of an open batch, in order."""
    return Call(
        "select ev_id, ev_type, ev_data, ev_retry, ev_time, "
        "ev_extra1, ev_extra2, ev_extra3, ev_extra4 from pgque.get_batch_events(%s)",
        (batch_id,),
        lambda rows: [Message(*row) for row in rows],
    )


def read_plan(batch_id: int, max_slices: int) -> Call[ReadPlan]:
    """A batch split for reading side by side; no slice when it is empty."""
    return Call(
        "select slice_sql, batch_events from pgque.batch_read_plan(%s, %s) order by slice_nr",
        (batch_id, max_slices),
        lambda rows: ReadPlan(tuple(row[0] for row in rows), rows[0][1] if rows else 0),
    )


def ticker() -> Call[int]:
    """A tick where one is due; how many queues got one."""
    return Call("select pgque.ticker()", (), _first)


def force_next_tick(queue: str) -> Call[None]:
    """A tick at the next ticker run, due or not."""
    return Call("select pgque.force_next_tick(%s)", (queue,), _nothing)


def tick_period() -> Call[timedelta]:
    """The configured period of the ticker."""
    return Call("select tick_period from pgque.ticker_pace()", (), _first)


def maint() -> Call[int]:
    """Rotation, retries, compaction."""
    return Call("select pgque.maint()", (), _first)


def queue_info() -> Call[list[QueueInfo]]:
    """All queues."""
    return Call(
        "select queue_name, ticker_lag, ev_per_sec, ev_new, last_tick_id "
        "from pgque.get_queue_info()",
        (),
        lambda rows: [QueueInfo(*row) for row in rows],
    )


def consumer_info(queue: str | None) -> Call[list[ConsumerInfo]]:
    """The consumers of a queue, or of all."""
    return Call(
        "select queue_name, consumer_name, lag, last_seen, last_tick, current_batch, "
        "pending_events from pgque.get_consumer_info(%s::text)",
        (queue,),
        lambda rows: [ConsumerInfo(*row) for row in rows],
    )


def dead_letter_counts(queue: str) -> Call[list[DeadLetterCount]]:
    """Dead letters by consumer and reason, most first."""
    return Call(
        "select consumer_name, reason, dead_letters, oldest from pgque.dlq_summary(%s)",
        (queue,),
        lambda rows: [DeadLetterCount(*row) for row in rows],
    )


def dead_letters(queue: str, limit: int) -> Call[list[DeadLetter]]:
    """The newest dead letters."""
    return Call(
        "select dl_id, dl_time, dl_reason, ev_id, ev_retry, ev_type, ev_data "
        "from pgque.dlq_inspect(%s, %s)",
        (queue, limit),
        lambda rows: [DeadLetter(*row) for row in rows],
    )


def replay_dead_letter(dead_letter_id: int) -> Call[int]:
    """A dead letter again to its consumer; the new event's id."""
    return Call("select pgque.dlq_replay(%s)", (dead_letter_id,), _first)


def replay_dead_letters(queue: str) -> Call[tuple[int, int, str | None]]:
    """All dead letters again: how many went, how many did not, and the first error."""
    return Call(
        "select replayed, failed, first_error from pgque.dlq_replay_all(%s)",
        (queue,),
        lambda rows: (rows[0][0], rows[0][1], rows[0][2]),
    )


def purge_dead_letters(queue: str, older_than: timedelta) -> Call[int]:
    """Dead letters deleted by age; how many."""
    return Call("select pgque.dlq_purge(%s, %s)", (queue, older_than), _first)
