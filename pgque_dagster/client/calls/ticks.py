"""Ranges of ticks as batches, for readers that keep their own record of how far they got."""

from dataclasses import dataclass
from datetime import timedelta

from ..models import Lease
from .batches import read_lease
from .call import Call, Row


@dataclass(frozen=True)
class TickClaim:
    """A range of ticks under a lease.

    Attributes:
        lease: the batch that the range is, and who holds it.
        registration_id: the consumer's registration; another one after it was registered anew.
    """

    lease: Lease
    registration_id: int


def register_at(queue: str, consumer: str, tick: int) -> Call[bool]:
    """A consumer that gets what follows a tick that is retained; False if it was registered."""
    return Call(
        "select pgque.register_consumer_at(%s, %s, %s) = 1",
        (queue, consumer, tick),
        lambda rows: bool(rows[0][0]),
    )


def is_new(queue: str, age: timedelta) -> Call[bool]:
    """Whether a queue was created within a time, by the database's clock, and has not rotated."""
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
    """The events between two ticks as the open batch; what lies before is finished by that."""

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
    """The farthest tick after one, within so many events; None when there is none."""
    return Call(
        "select pgque.next_tick(%s, %s, %s, %s)",
        (queue, consumer, after_tick, max_events),
        lambda rows: rows[0][0],
    )
