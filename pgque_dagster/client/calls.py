"""The SQL that the client sends, without any input or output of its own.

A call is a text, its parameters, and how to read the rows. A client runs it on whatever kind of
connection it has, so a synchronous and an asynchronous one share this module.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, LiteralString, TypeVar
from uuid import UUID

from .encoding import encode
from .models import (
    BatchInfo,
    ConsumerInfo,
    DeadLetter,
    DeadLetterCount,
    HealthCheck,
    Lease,
    LeaseInfo,
    Limits,
    Message,
    Metric,
    QueueInfo,
    QueueStats,
    Status,
)

T = TypeVar("T")
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Call(Generic[T]):
    """One statement: its text, its parameters, and what its rows mean."""

    sql: LiteralString
    params: tuple[object, ...]
    parse: Callable[[list[Row]], T]


def first(rows: list[Row]) -> Any:
    """Reads the one value of an answer."""
    return rows[0][0]


def nothing(rows: list[Row]) -> None:
    """Reads an answer that says nothing."""
    return


def version() -> Call[str]:
    """The installed schema's version."""
    return Call("select pgque.version()", (), first)


def lineage() -> Call[UUID]:
    """Which life of which database this is."""
    return Call("select pgque.lineage()", (), first)


def create_queue(queue: str) -> Call[bool]:
    """A new queue; False if it existed."""
    return Call("select pgque.create_queue(%s) = 1", (queue,), first)


def create_queue_with(queue: str, options: Mapping[str, object]) -> Call[bool]:
    """A queue with these options, new or not; False if it existed."""
    return Call("select pgque.create_queue(%s, %s::jsonb) = 1", (queue, encode(options)), first)


def different_options(
    queue: str, options: Mapping[str, object]
) -> Call[list[tuple[str, str | None, str | None]]]:
    """The options that a queue does not have: name, present and wanted value."""
    return Call(
        "select param_name, present, wanted from pgque.different_options(%s, %s::jsonb)",
        (queue, encode(options)),
        lambda rows: [(name, present, wanted) for name, present, wanted in rows],
    )


def pause_queue(queue: str) -> Call[None]:
    """No more ticks of a queue."""
    return Call("select pgque.pause_queue(%s)::text", (queue,), nothing)


def resume_queue(queue: str) -> Call[None]:
    """Ticks of a queue again."""
    return Call("select pgque.resume_queue(%s)::text", (queue,), nothing)


def drop_queue(queue: str, force: bool) -> Call[None]:
    """A queue's end."""
    return Call("select pgque.drop_queue(%s, %s)", (queue, force), nothing)


def configure_queue(queue: str, parameter: str, value: str | None) -> Call[None]:
    """One parameter of a queue."""
    return Call("select pgque.set_queue_config(%s, %s, %s)", (queue, parameter, value), nothing)


def register_consumer(queue: str, consumer: str) -> Call[bool]:
    """A consumer at the last tick; False if it was registered."""
    return Call("select pgque.register_consumer(%s, %s) = 1", (queue, consumer), first)


def unregister_consumer(queue: str, consumer: str, keep_dead_letters: bool) -> Call[None]:
    """A consumer's end."""
    return Call(
        "select pgque.unregister_consumer(%s, %s, %s)",
        (queue, consumer, keep_dead_letters),
        nothing,
    )


def next_batch(queue: str, consumer: str, limits: Limits) -> Call[int | None]:
    """The open or next batch, without a lease."""
    return Call(
        # The types tell this form from the one with a subconsumer.
        "select batch_id from pgque.next_batch_custom("
        "%s, %s, %s::interval, %s::integer, %s::interval, %s::integer)",
        (queue, consumer, *astuple(limits)),
        first,
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
        first,
    )


def ack(lease: Lease) -> Call[None]:
    """A leased batch's end."""
    return Call(
        "select pgque.ack_batch(%s, %s, %s)", (lease.batch_id, lease.owner, lease.epoch), nothing
    )


def release(lease: Lease) -> Call[None]:
    """A claim given back."""
    return Call(
        "select pgque.release_batch(%s, %s, %s)",
        (lease.batch_id, lease.owner, lease.epoch),
        nothing,
    )


def finish_batch(batch_id: int) -> Call[None]:
    """An unleased batch's end."""
    return Call("select pgque.finish_batch(%s)", (batch_id,), nothing)


def nack_batch(
    lease: Lease, msg_ids: Sequence[int], after: timedelta, reasons: Sequence[str | None]
) -> Call[int]:
    """Events again later, or to the dead letters when their retries are used up."""
    return Call(
        "select pgque.nack_batch(%s, %b::bigint[], %s, %b::text[], %s, %s)",
        (lease.batch_id, list(msg_ids), after, list(reasons), lease.owner, lease.epoch),
        first,
    )


def dead_letter_batch(
    lease: Lease, msg_ids: Sequence[int], reasons: Sequence[str | None]
) -> Call[int]:
    """Events to the dead letters."""
    return Call(
        "select pgque.dead_letter_batch(%s, %b::bigint[], %b::text[], %s, %s)",
        (lease.batch_id, list(msg_ids), list(reasons), lease.owner, lease.epoch),
        first,
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


def ticker() -> Call[int]:
    """A tick where one is due; how many queues got one."""
    return Call("select pgque.ticker()", (), first)


def force_next_tick(queue: str) -> Call[None]:
    """A tick at the next ticker run, due or not."""
    return Call("select pgque.force_next_tick(%s)", (queue,), nothing)


def tick_period() -> Call[timedelta]:
    """The configured period of the ticker."""
    return Call("select tick_period from pgque.ticker_pace()", (), first)


def maint() -> Call[int]:
    """Rotation, retries, compaction."""
    return Call("select pgque.maint()", (), first)


def start() -> Call[None]:
    """Jobs of pg_cron that tick and maintain."""
    return Call("select pgque.start()::text", (), nothing)


def scheduler() -> Call[str | None]:
    """Whose jobs tick the queues; None where nobody made any."""
    return Call("select scheduler from pgque.config", (), first)


def stop() -> Call[None]:
    """The jobs' end."""
    return Call("select pgque.stop()::text", (), nothing)


def status() -> Call[list[Status]]:
    """What keeps the queues going, part by part."""
    return Call(
        "select component, status, detail from pgque.status()",
        (),
        lambda rows: [Status(*row) for row in rows],
    )


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


def queue_stats() -> Call[list[QueueStats]]:
    """All queues at a glance."""
    return Call(
        "select queue_name, depth, oldest_msg_age, consumers, events_per_sec::float8, "
        "rotation_age, ticker_paused, last_tick_time, dlq_count from pgque.queue_stats()",
        (),
        lambda rows: [QueueStats(*row) for row in rows],
    )


def health() -> Call[list[HealthCheck]]:
    """All checks, those of the database first."""
    return Call(
        "select queue_name, check_name, status, detail from pgque.queue_health()",
        (),
        lambda rows: [HealthCheck(*row) for row in rows],
    )


def metrics() -> Call[list[Metric]]:
    """All metrics."""
    return Call(
        "select metric_name, metric_type, value::float8, labels from pgque.otel_metrics()",
        (),
        lambda rows: [Metric(*row) for row in rows],
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
    return Call("select pgque.dlq_replay(%s)", (dead_letter_id,), first)


def replay_dead_letters(
    queue: str,
    reason: str | None,
    type: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int | None,
) -> Call[tuple[int, int, str | None]]:
    """Dead letters that fit, again: how many went, how many did not, and the first error."""
    return Call(
        "select replayed, failed, first_error "
        "from pgque.dlq_replay_matching(%s, %s, %s, %s, %s, %s)",
        (queue, reason, type, since, until, limit),
        lambda rows: (rows[0][0], rows[0][1], rows[0][2]),
    )


def purge_dead_letters(queue: str, older_than: timedelta) -> Call[int]:
    """Dead letters deleted by age; how many."""
    return Call("select pgque.dlq_purge(%s, %s)", (queue, older_than), first)
