"""Ranges of ticks as batches, for readers that keep their own checkpoint."""

from dataclasses import dataclass
from datetime import timedelta

from ..models import Lease
from .batches import read_lease
from .call import Call, Row


@dataclass(frozen=True)
class TickClaim:
    """A range of ticks under a lease.

    Attributes:
        lease: the lease on the batch that the range forms.
        registration_id: identifies the consumer's registration; a new registration has a new id.
    """

    lease: Lease
    registration_id: int


def register_at(queue: str, consumer: str, tick: int) -> Call[bool]:
    """Registers a consumer at a retained tick; False if it is registered."""
    return Call(
        "select pgque.register_consumer_at(%s, %s, %s) = 1",
        (queue, consumer, tick),
        lambda rows: bool(rows[0][0]),
    )


def is_new(queue: str, age: timedelta) -> Call[bool]:
    """Whether a queue is younger than `age` by the database's clock, and has not rotated."""
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
    from_tick: int | None = None,
    to_tick: int | None = None,
    epoch: int | None = None,
) -> Call[TickClaim]:
    """Claims the events between two ticks as the open batch, and finishes earlier events."""

    def parse(rows: list[Row]) -> TickClaim:
        lease = read_lease(owner, rows[0][:5])
        assert lease is not None
        return TickClaim(lease, rows[0][5])

    return Call(
        "select batch_id, epoch, lease_until, prev_tick_id, cur_tick_id, registration_id "
        "from pgque.claim_ticks(%s, %s, %s, %s, %s, %s, %s)",
        (queue, consumer, owner, ttl, from_tick, to_tick, epoch),
        parse,
    )


def next_tick(
    queue: str, consumer: str, after_tick: int | None = None, max_events: int | None = None
) -> Call[int | None]:
    """The last tick after `after_tick` within `max_events` events; None if there is none."""
    return Call(
        "select pgque.next_tick(%s, %s, %s, %s)",
        (queue, consumer, after_tick, max_events),
        lambda rows: rows[0][0],
    )
