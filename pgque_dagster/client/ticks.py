"""Ranges of ticks as batches, for readers that keep their own checkpoint."""

from dataclasses import dataclass
from datetime import timedelta

from .batch import read_lease
from .models import Lease
from .operation import Call, Row, first


@dataclass(frozen=True)
class Tick:
    """A tick in the record of a reader.

    Attributes:
        id: its number.
        fingerprint: distinguishes it from other ticks of the same number, which can exist after a
            failover; None in a record without fingerprints.
    """

    id: int
    fingerprint: str | None

    def fits(self, record: "Tick") -> bool:
        """Returns whether a record can mean this tick."""
        return self.id == record.id and record.fingerprint in (None, self.fingerprint)


@dataclass(frozen=True)
class TickClaim:
    """A range of ticks under a lease.

    Attributes:
        registration_id: identifies the consumer's registration; a new registration has a new id.
    """

    lease: Lease
    registration_id: int
    start: Tick
    end: Tick


def is_new(queue: str, age: timedelta) -> Call[bool]:
    """Returns whether a queue is younger than `age` (database clock) and has not rotated."""
    return Call(
        "select queue_cur_table = 0 and clock_timestamp() - queue_switch_time < %s "
        "from pgque.get_queue_info(%s)",
        (age, queue),
        lambda rows: bool(rows and rows[0][0]),
    )


def claim_ticks(
    queue: str,
    consumer: str,
    owner: str,
    ttl: timedelta,
    from_tick: Tick | None = None,
    to_tick: Tick | None = None,
    epoch: int | None = None,
) -> Call[TickClaim]:
    """Claims the events between two ticks as the open batch, and finishes earlier events."""

    def parse(rows: list[Row]) -> TickClaim:
        (row,) = rows
        lease = read_lease(owner, row[:5])
        assert lease is not None
        start, end = Tick(lease.prev_tick_id, row[6]), Tick(lease.tick_id, row[7])
        return TickClaim(lease, row[5], start, end)

    ids, fingerprints = (
        [getattr(tick, name, None) for tick in (from_tick, to_tick)]
        for name in ("id", "fingerprint")
    )
    return Call(
        "select batch_id, epoch, lease_until, prev_tick_id, cur_tick_id, registration_id, "
        "prev_fingerprint, cur_fingerprint "
        "from pgque.claim_ticks(%s, %s, %s, %s, %s, %s, %s, %s, %s)",
        (queue, consumer, owner, ttl, *ids, epoch, *fingerprints),
        parse,
    )


def next_tick(
    queue: str, consumer: str, after_tick: int | None = None, max_events: int | None = None
) -> Call[Tick | None]:
    """Returns the last tick after `after_tick` within `max_events` events, or None."""
    return Call(
        "select t, pgque.tick_fingerprint(%s, t) from pgque.next_tick(%s, %s, %s, %s) t",
        (queue, queue, consumer, after_tick, max_events),
        lambda rows: None if rows[0][0] is None else Tick(*rows[0]),
    )


def tick_fingerprint(queue: str, tick_id: int) -> Call[str | None]:
    """Returns the fingerprint that distinguishes a tick from others with its number, or None."""
    return Call("select pgque.tick_fingerprint(%s, %s)", (queue, tick_id), first)
