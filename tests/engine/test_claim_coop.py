"""Leases on the batches of subconsumers: several at a time, each with one owner."""

from typing import Any

import pytest

from tests.support.queues import Connection, payloads, refused, rows, value
from tests.support.workers import queue_with_ticks, register


@pytest.fixture
def shared(db: Connection) -> Connection:
    """A queue with a consumer whose subconsumers are w1 and w2, and two batches."""
    queue_with_ticks(db, "x", "y")
    register(db, "w2")
    return db


def claim(db: Connection, sub: str, owner: str = "me", ttl: str = "1 minute", **more: Any) -> Any:
    """The batch and its epoch."""
    named = "".join(f", {name} => %s" for name in more)
    call = f"pgque.claim_coop('q', 'c', %s, %s, %s{named})"
    (found,) = rows(db, f"select batch_id, epoch from {call}", sub, owner, ttl, *more.values())
    return found


def ack(db: Connection, batch: int, epoch: int, owner: str = "me") -> Any:
    return value(db, "select pgque.ack_batch(%s, %s, %s)", batch, owner, epoch)


def test_two_subconsumers_hold_a_batch_each_at_the_same_time(shared: Connection) -> None:
    first, second = claim(shared, "w1"), claim(shared, "w2")
    assert [payloads(shared, batch) for batch, _ in (first, second)] == [["x"], ["y"]]
    assert (ack(shared, *second), ack(shared, *first)) == (1, 1)
    assert claim(shared, "w1") == (None, None)


def test_a_maximum_count_takes_several_ticks_at_once(shared: Connection) -> None:
    batch, _ = claim(shared, "w1", i_max_count=10)
    assert payloads(shared, batch) == ["x", "y"]


def test_impossible_limits_and_leases_are_refused(shared: Connection) -> None:
    with refused("PQ005", "min_lag"):
        claim(shared, "w1", i_min_count=2, i_max_count=1)
    for owner, ttl in (("", "1 minute"), ("me", "0")):
        with refused("PQ005", "lease"):
            claim(shared, "w1", owner, ttl)


def test_a_live_lease_keeps_others_out(shared: Connection) -> None:
    held, _ = claim(shared, "w1")
    with refused("PQ004", 'leased by "me"'):
        claim(shared, "w1", owner="you")
    with refused("PQ004", 'leased by "me"'):
        value(shared, "select pgque.next_batch('q', 'c', 'w1')")
    taken = value(shared, "select pgque.next_batch('q', 'c', 'w2', '0 seconds')")
    assert (payloads(shared, taken), payloads(shared, held)) == (["y"], ["x"])


def test_a_lease_that_ran_out_is_taken_over_and_the_earlier_holder_cannot_ack(
    shared: Connection,
) -> None:
    batch, epoch = claim(shared, "w1", ttl="1 microsecond")
    again, newer = claim(shared, "w1", owner="you")
    assert (again, newer) == (batch, epoch + 1)
    with refused("PQ012"):
        ack(shared, batch, epoch)
    assert ack(shared, batch, newer, owner="you") == 1


def test_only_the_open_batch_that_was_named_is_claimed(shared: Connection) -> None:
    batch, epoch = claim(shared, "w1")
    value(shared, "select pgque.release_batch(%s, 'me', %s)", batch, epoch)
    assert claim(shared, "w1", i_batch_id=batch)[0] == batch
    with refused("PQ003", f"batch {batch} of q/c.w2 is not open"):
        claim(shared, "w2", i_batch_id=batch)


def test_to_name_a_batch_registers_nobody(shared: Connection) -> None:
    with refused("PQ003"):
        claim(shared, "new", i_batch_id=1)
    with refused("PQ002", "c.new"):
        value(shared, "select batch_id from pgque.get_lease_info('q', 'c.new')")
