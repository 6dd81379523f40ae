"""Batches: claim, read, nack, ack."""

from collections.abc import Sequence
from dataclasses import astuple
from datetime import timedelta
from typing import Any
from uuid import UUID

from ..errors import BatchNotOpen
from ..models import BatchInfo, History, Lease, LeaseInfo, Limits, Message
from ..ranges import check_interval
from .call import Call, Row, first, nothing


def next_batch(queue: str, consumer: str, limits: Limits) -> Call[int | None]:
    """Opens the next batch without a lease, or returns the open one."""
    return Call(
        # The casts select the overload without a subconsumer.
        "select batch_id from pgque.next_batch_custom("
        "%s, %s, %s::interval, %s::integer, %s::interval, %s::integer)",
        (queue, consumer, *astuple(limits)),
        first,
    )


def claim(
    queue: str,
    consumer: str,
    owner: str,
    ttl: timedelta,
    limits: Limits,
    batch_id: int | None,
    subconsumer: str | None = None,
) -> Call[Lease | None]:
    """Claims the open or next batch of a consumer, or of a subconsumer of it."""
    check_interval("ttl", ttl)
    columns = "batch_id, epoch, lease_until, prev_tick_id, cur_tick_id"
    options = (owner, ttl, *astuple(limits), batch_id)

    def parse(rows: list[Row]) -> Lease | None:
        return read_lease(owner, rows[0])

    if subconsumer is None:
        sql = f"select {columns} from pgque.claim_batch(%s, %s, %s, %s, %s, %s, %s, %s, %s)"
        return Call(sql, (queue, consumer, *options), parse)
    sql = f"select {columns} from pgque.claim_coop(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
    return Call(sql, (queue, consumer, subconsumer, *options), parse)


def read_lease(owner: str, row: Row) -> Lease | None:
    """Reads batch_id, epoch, lease_until, prev_tick_id, cur_tick_id; None without a batch."""
    batch_id, epoch, until, prev_tick, tick = row
    return None if batch_id is None else Lease(batch_id, owner, epoch, until, prev_tick, tick)


def renew(lease: Lease, ttl: timedelta) -> Call[Any]:
    """Renews a lease; the new expiry time."""
    check_interval("ttl", ttl)
    return Call(
        "select pgque.renew_batch(%s, %s, %s, %s)",
        (lease.batch_id, lease.owner, lease.epoch, ttl),
        first,
    )


def ack(lease: Lease) -> Call[None]:
    """Finishes a leased batch."""
    return Call(
        "select pgque.ack_batch(%s, %s, %s)", (lease.batch_id, lease.owner, lease.epoch), nothing
    )


def release(lease: Lease) -> Call[None]:
    """Releases a lease."""
    return Call(
        "select pgque.release_batch(%s, %s, %s)",
        (lease.batch_id, lease.owner, lease.epoch),
        nothing,
    )


def finish_batch(batch_id: int) -> Call[None]:
    """Finishes a batch opened without a lease."""
    return Call("select pgque.finish_batch(%s)", (batch_id,), nothing)


def nack_batch(
    lease: Lease, msg_ids: Sequence[int], after: timedelta, reasons: Sequence[str | None]
) -> Call[int]:
    """Schedules events again, or dead-letters those without retries left; how many."""
    return Call(
        "select pgque.nack_batch(%s, %b::bigint[], %s, %b::text[], %s, %s)",
        (lease.batch_id, list(msg_ids), after, list(reasons), lease.owner, lease.epoch),
        first,
    )


def dead_letter_batch(
    lease: Lease, msg_ids: Sequence[int], reasons: Sequence[str | None]
) -> Call[int]:
    """Dead-letters events; how many."""
    return Call(
        "select pgque.dead_letter_batch(%s, %b::bigint[], %b::text[], %s, %s)",
        (lease.batch_id, list(msg_ids), list(reasons), lease.owner, lease.epoch),
        first,
    )


def set_events_aside(batch_id: int, event_ids: Sequence[int], reason: str | None) -> Call[int]:
    """Dead-letters events of an open batch and takes them out of it; how many."""
    return Call(
        "select pgque.set_events_aside(%s, %s::bigint[], %s)",
        (batch_id, list(event_ids), reason),
        first,
    )


def finished_before(batch_id: int, max_events: int) -> Call[History]:
    """How the consumer of an open batch fared with its newest events before the batch."""
    return Call(
        "select finished, failed from pgque.finished_before(%s, %s)",
        (batch_id, max_events),
        lambda rows: History(*rows[0]),
    )


def lease_info(queue: str, consumer: str) -> Call[LeaseInfo | None]:
    """Who holds the open batch."""
    return Call(
        "select batch_id, owner, lease_until, epoch, is_live from pgque.get_lease_info(%s, %s)",
        (queue, consumer),
        lambda rows: LeaseInfo(*rows[0]) if rows else None,
    )


def batch_info(batch_id: int) -> Call[BatchInfo]:
    """What an open batch spans."""

    def parse(rows: list[Row]) -> BatchInfo:
        if not rows:
            raise BatchNotOpen(
                f"batch {batch_id} is not open", "It was finished already, or never existed."
            )
        return BatchInfo(*rows[0])

    return Call(
        "select queue_name, consumer_name, batch_start, batch_end, prev_tick_id, tick_id, lag, "
        "seq_start, seq_end from pgque.get_batch_info(%s) where queue_name is not null",
        (batch_id,),
        parse,
    )


def batch_events(batch_id: int) -> Call[list[Message]]:
    """All events of an open batch, in order."""
    return Call(
        "select ev_id, ev_type, ev_data, ev_retry, ev_time, "
        "ev_extra1, ev_extra2, ev_extra3, ev_extra4 from pgque.get_batch_events(%s)",
        (batch_id,),
        lambda rows: [Message(*row) for row in rows],
    )


def identity(queue: str, lease: Lease) -> Call[tuple[UUID, str | None, str | None]]:
    """The incarnation of the database, and the fingerprints of the ticks of a leased batch."""
    return Call(
        "select pgque.incarnation(), pgque.tick_fingerprint(%s, %s), "
        "pgque.tick_fingerprint(%s, %s)",
        (queue, lease.prev_tick_id, queue, lease.tick_id),
        lambda rows: (rows[0][0], rows[0][1], rows[0][2]),
    )


def tick_fingerprint(queue: str, tick_id: int) -> Call[str | None]:
    """What tells a tick from another one of its number; None without such a tick."""
    return Call("select pgque.tick_fingerprint(%s, %s)", (queue, tick_id), first)
