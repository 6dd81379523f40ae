"""A held batch: all attempts at it failed, and health says so until somebody looks into it."""

from typing import Any

import pytest

from tests.support.metrics import health
from tests.support.queues import (
    Connection,
    finish,
    make_queue,
    open_batch,
    refused,
    rows,
    send,
    tick,
    value,
)


def hold(db: Connection, batch: Any, epoch: int = 0, reason: str = "three runs failed") -> int:
    held: int = value(db, "select pgque.hold_batch(%s, %s, %s)", batch, epoch, reason)
    return held


def held_reason(db: Connection) -> str | None:
    reason: str | None = value(
        db, "select held_reason from pgque.consumer_states('{q}'::text[], '{c}'::text[])"
    )
    return reason


def claim(db: Connection, ttl: str = "1 minute") -> tuple[Any, ...]:
    (claimed,) = rows(
        db, "select batch_id, epoch from pgque.claim_batch('q', 'c', 'me', %s::interval)", ttl
    )
    return claimed


def test_a_held_batch_is_critical_with_its_consumer_its_number_and_the_reason(
    db: Connection,
) -> None:
    make_queue(db)
    batch = open_batch(db, "a")
    assert health(db)["held_batch:c"] == ("ok", "no batch is held")

    assert hold(db, batch) == 1

    status, detail = health(db)["held_batch:c"]
    assert status == "critical"
    assert detail.startswith(f'batch {batch} of "c" is held since 20')
    assert detail.endswith("what follows it waits: three runs failed")
    assert held_reason(db) == "three runs failed"


def test_a_claim_ends_the_hold(db: Connection) -> None:
    make_queue(db)
    hold(db, open_batch(db, "a"))

    claim(db)

    assert health(db)["held_batch:c"][0] == "ok"
    assert held_reason(db) is None


def test_the_end_of_the_batch_ends_the_hold_and_the_next_batch_is_not_held(db: Connection) -> None:
    make_queue(db)
    batch = open_batch(db, "a")
    hold(db, batch)

    finish(db, batch)
    assert health(db)["held_batch:c"][0] == "ok"
    open_batch(db, "b")
    assert health(db)["held_batch:c"][0] == "ok"


def test_a_batch_may_be_held_once_more_under_its_next_epoch(db: Connection) -> None:
    make_queue(db)
    hold(db, open_batch(db, "a"))
    batch, epoch = claim(db, ttl="1 microsecond")

    assert hold(db, batch, epoch, "a run by hand failed, too") == 1

    assert held_reason(db) == "a run by hand failed, too"


def test_a_second_hold_under_the_same_epoch_changes_nothing(db: Connection) -> None:
    make_queue(db)
    batch = open_batch(db, "a")
    hold(db, batch)

    assert hold(db, batch, reason="another") == 0

    assert held_reason(db) == "three runs failed"


def test_a_batch_that_was_claimed_since_is_not_held(db: Connection) -> None:
    make_queue(db)
    batch = open_batch(db, "a")
    claim(db, ttl="1 microsecond")

    with refused("PQ012", f"batch {batch} is not held", "under epoch 1, not 0", "count them again"):
        hold(db, batch)


def test_a_batch_that_somebody_works_on_is_not_held(db: Connection) -> None:
    make_queue(db)
    send(db, "a")
    tick(db)
    batch, epoch = claim(db)

    with refused("PQ012", '"me" works on it until'):
        hold(db, batch, epoch)


def test_a_batch_that_is_not_open_is_not_held(db: Connection) -> None:
    make_queue(db)
    batch = open_batch(db, "a")
    finish(db, batch)

    with refused("PQ003", str(batch)):
        hold(db, batch)


@pytest.mark.parametrize("reason", ["", None])
def test_a_hold_without_a_reason_is_refused(db: Connection, reason: Any) -> None:
    make_queue(db)
    batch = open_batch(db, "a")

    with refused("PQ005", f"no reason to hold batch {batch}"):
        hold(db, batch, reason=reason)


def test_a_batch_of_a_part_of_a_shared_consumer_is_held_by_itself(db: Connection) -> None:
    make_queue(db, consumers=())
    value(db, "select pgque.register_subconsumer('q', 'c', 'one')")
    send(db, "a")
    tick(db)
    batch = value(db, "select pgque.next_batch('q', 'c', 'one')")

    hold(db, batch)

    assert health(db)["held_batch:c.one"][0] == "critical"
    assert health(db)["held_batch:c"][0] == "ok"


def test_a_consumer_that_ends_takes_its_hold_along(db: Connection) -> None:
    make_queue(db)
    hold(db, open_batch(db, "a"))

    value(db, "select pgque.unregister_consumer('q', 'c')")

    assert rows(db, "select * from pgque.held_batch") == []


def test_the_epoch_grows_with_each_claim_and_not_with_a_renewal_or_an_ack(db: Connection) -> None:
    make_queue(db)
    sql = "select lease_epoch from pgque.consumer_states('{q}'::text[], '{c}'::text[])"
    assert value(db, sql) == 0
    send(db, "a")
    tick(db)
    batch, epoch = claim(db)
    value(db, "select pgque.renew_batch(%s, 'me', %s)::text", batch, epoch)
    value(db, "select pgque.ack_batch(%s, 'me', %s)", batch, epoch)
    assert (epoch, value(db, sql)) == (1, 1)
    send(db, "b")
    tick(db)
    claim(db)
    assert value(db, sql) == 2
