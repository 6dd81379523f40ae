"""Leases on the batches of subconsumers: several at a time, each with one owner."""

from typing import Any

import pytest

from tests.support.queues import Connection, make_queue, payloads, refused, rows, send, tick, value


@pytest.fixture
def shared(db: Connection) -> Connection:
    """A queue with a consumer whose subconsumers are 1 and 2, and two batches."""
    make_queue(db, consumers=())
    for name in ("1", "2"):
        value(db, "select pgque.register_subconsumer('q', 'c', %s)", name)
    for text in ("x", "y"):
        send(db, text)
        tick(db)
    return db


def claim(
    db: Connection, sub: str, owner: str = "me", ttl: str = "1 minute", **more: Any
) -> tuple[Any, Any]:
    named = "".join(f", {name} => %s" for name in more)
    ((batch, epoch),) = rows(
        db,
        f"select batch_id, epoch from pgque.claim_coop('q', 'c', %s, %s, %s{named})",
        sub,
        owner,
        ttl,
        *more.values(),
    )
    return batch, epoch


def ack(db: Connection, batch: int, epoch: int, owner: str = "me") -> Any:
    return value(db, "select pgque.ack_batch(%s, %s, %s)", batch, owner, epoch)


def test_two_subconsumers_hold_a_batch_each_at_the_same_time(shared: Connection) -> None:
    first, second = claim(shared, "1"), claim(shared, "2")

    assert [payloads(shared, batch) for batch, _ in (first, second)] == [["x"], ["y"]]
    assert ack(shared, *second) == 1
    assert ack(shared, *first) == 1
    assert claim(shared, "1") == (None, None)


def test_a_maximum_count_takes_several_ticks_at_once(shared: Connection) -> None:
    batch, _ = claim(shared, "1", i_max_count=10)

    assert payloads(shared, batch) == ["x", "y"]


def test_limits_that_no_batch_can_meet_are_refused(shared: Connection) -> None:
    with refused("PQ005", "min_lag"):
        claim(shared, "1", i_min_count=2, i_max_count=1)


@pytest.mark.parametrize(("owner", "ttl"), [("", "1 minute"), ("me", "0")])
def test_a_lease_needs_an_owner_and_a_time(shared: Connection, owner: str, ttl: str) -> None:
    with refused("PQ005", "lease"):
        claim(shared, "1", owner, ttl)


def test_another_owner_is_refused_while_the_lease_lives(shared: Connection) -> None:
    claim(shared, "1")

    with refused("PQ004", 'leased by "me"'):
        claim(shared, "1", owner="you")
    with refused("PQ004", 'leased by "me"'):
        value(shared, "select pgque.next_batch('q', 'c', '1')")


def test_a_lease_that_ran_out_is_taken_over_and_the_earlier_holder_cannot_ack(
    shared: Connection,
) -> None:
    batch, epoch = claim(shared, "1", ttl="1 microsecond")
    again, newer = claim(shared, "1", owner="you")

    assert (again, newer) == (batch, epoch + 1)
    with refused("PQ012"):
        ack(shared, batch, epoch)
    assert ack(shared, batch, newer, owner="you") == 1


def test_a_colleague_takes_over_no_batch_whose_lease_lives(shared: Connection) -> None:
    held, _ = claim(shared, "1")

    taken = value(shared, "select pgque.next_batch('q', 'c', '2', '0 seconds')")

    assert payloads(shared, taken) == ["y"]
    assert payloads(shared, held) == ["x"]


def test_only_the_open_batch_that_was_named_is_claimed(shared: Connection) -> None:
    batch, epoch = claim(shared, "1")
    value(shared, "select pgque.release_batch(%s, 'me', %s)", batch, epoch)

    assert claim(shared, "1", i_batch_id=batch)[0] == batch
    with refused("PQ003", f"batch {batch} of q/c.2 is not open"):
        claim(shared, "2", i_batch_id=batch)


def test_to_name_a_batch_registers_nobody(shared: Connection) -> None:
    with refused("PQ003"):
        claim(shared, "new", i_batch_id=1)

    with refused("PQ002", "c.new"):
        value(shared, "select batch_id from pgque.get_lease_info('q', 'c.new')")
