"""Who holds a slot of a partitioned consumer, and what others may do meanwhile."""

import pytest

from tests.support.queues import (
    Blocked,
    Connection,
    compact_positions,
    compact_ticks,
    refused,
    rows,
    value,
)
from tests.support.slots import (
    ack,
    claim,
    drain_slot,
    expire,
    nack,
    publish_and_receive,
    publish_keyed,
    queue_with_slots,
    receive,
    release,
    statuses,
    texts,
)


@pytest.fixture
def one(db: Connection) -> Connection:
    """A queue whose consumer c has one slot, which w holds under epoch 1."""
    queue_with_slots(db, 1)
    return db


def test_a_claim_is_renewed_under_its_epoch_and_others_get_none(one: Connection) -> None:
    ((first,),) = statuses(one, "lease_until")
    assert claim(one, worker="other") is None
    assert statuses(one, "lease_owner", "epoch", "lease_until") == [("w", 1, first)]
    assert claim(one, ttl="1 minute") == 1
    assert statuses(one, "lease_until") > [(first,)]


def test_a_lease_that_ran_out_works_until_it_goes_to_the_next_worker(one: Connection) -> None:
    publish_keyed(one, ("k", "a"))
    expire(one)
    assert drain_slot(one, 0, 1) == ["a"]
    assert claim(one, worker="other") is None
    expire(one)
    assert claim(one, worker="other") == 2
    assert claim(one) is None


def test_a_released_slot_is_free_and_its_page_comes_again(one: Connection) -> None:
    publish_keyed(one, ("k", "a"))
    receive(one, 0, 1)
    assert release(one) is True
    for worker in ("w", None):
        with refused("PQ012", "nobody holds it"):
            receive(one, 0, 1, worker)
    assert claim(one, worker="other") == 2
    assert ack(one, 0, 1, "other") == 0
    assert texts(receive(one, 0, 1, "other")) == ["a"]


@pytest.mark.parametrize("worker", ["other", None])
def test_only_its_holder_releases_a_slot(one: Connection, worker: str | None) -> None:
    assert release(one, worker=worker) is False
    assert statuses(one, "lease_owner") == [("w",)]
    release(one)
    assert release(one, worker=worker) is False


def test_who_lost_the_lease_is_refused_and_the_heir_begins_anew(one: Connection) -> None:
    ((message, *_),) = publish_and_receive(one)
    expire(one)
    claim(one, worker="heir")
    for call in (
        lambda: receive(one, 0, 1),
        lambda: ack(one, 0, 1),
        lambda: nack(one, message, 0, 1),
    ):
        with refused("PQ012", "is not leased by", '"heir" holds it under epoch 2'):
            call()
    assert rows(one, "select * from pgque.retry_queue") == []
    assert ack(one, 0, 1, "heir") == 0
    assert texts(receive(one, 0, 1, "heir")) == ["a"]
    assert ack(one, 0, 1, "heir") == 1


@pytest.mark.parametrize(("undone", "epoch"), [(False, None), (True, 2)])
def test_of_two_claims_at_once_one_wins(
    one: Connection, blocked: Blocked, undone: bool, epoch: int | None
) -> None:
    release(one)
    with one.transaction(force_rollback=undone):
        assert claim(one) == 2
        answer = blocked(claim, 0, "other")
    assert answer.result() == epoch


def test_an_ack_waits_for_a_take_over_and_is_refused(one: Connection, blocked: Blocked) -> None:
    publish_and_receive(one)
    expire(one)
    with one.transaction():
        claim(one, worker="heir")
        answer = blocked(ack, 0, 1)
    with refused("PQ012", '"heir" holds it'):
        answer.result()


def test_idle_workers_write_only_to_keep_their_lease(one: Connection) -> None:
    written = "select max(pos_seq) from pgque.position_log"
    receive(one, 0, 1)
    before = value(one, written)
    for _ in range(5):
        assert receive(one, 0, 1) == []
    assert value(one, written) == before
    claim(one, ttl="0.2 seconds")
    one.execute("select pg_sleep(0.15)")
    receive(one, 0, 1)
    assert value(one, written) == before + 2


def test_slots_survive_a_compaction(one: Connection) -> None:
    publish_keyed(one, ("k", "a"), ("k", "b"))
    receive(one, 0, 1, most=1)
    ack(one, 0, 1)
    receive(one, 0, 1, most=1)
    assert compact_positions(one) > 0
    compact_ticks(one)
    assert ack(one, 0, 1) == 1
    assert drain_slot(one, 0, 1) == []
    assert statuses(one, "lease_owner", "epoch") == [("w", 1)]
