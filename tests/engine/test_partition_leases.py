"""Who holds a slot of a partitioned consumer, and what others may do meanwhile."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.queues import (
    Connection,
    compact_positions,
    compact_ticks,
    refused,
    rows,
    value,
    wait_until_blocked,
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

Another = Callable[[], Connection]


class TestLeases:
    def test_a_claim_is_renewed_under_its_epoch(self, db: Connection) -> None:
        queue_with_slots(db, 1)
        ((first,),) = statuses(db, "lease_until")
        assert claim(db, ttl="1 minute") == 1
        ((second,),) = statuses(db, "lease_until")
        assert second > first

    def test_a_slot_of_another_worker_is_not_to_be_had(self, db: Connection) -> None:
        queue_with_slots(db, 1)
        assert claim(db, worker="other") is None
        assert statuses(db, "lease_owner", "epoch") == [("w", 1)]

    def test_a_lease_that_ran_out_goes_to_the_next_worker(self, db: Connection) -> None:
        queue_with_slots(db, 1)
        expire(db)
        assert claim(db, worker="other") == 2
        assert claim(db) is None

    def test_a_lease_that_ran_out_but_was_not_taken_still_works(self, db: Connection) -> None:
        queue_with_slots(db, 1)
        publish_keyed(db, ("k", "a"))
        expire(db)
        assert drain_slot(db, 0, 1) == ["a"]
        assert claim(db, worker="other") is None

    def test_a_released_slot_is_free_and_its_page_comes_again(self, db: Connection) -> None:
        queue_with_slots(db, 1)
        publish_keyed(db, ("k", "a"))
        receive(db, 0, 1)
        assert release(db) is True
        assert claim(db, worker="other") == 2
        assert ack(db, 0, 1, "other") == 0
        assert texts(receive(db, 0, 1, "other")) == ["a"]

    @pytest.mark.parametrize("worker", ["other", None])
    def test_only_its_holder_releases_a_slot(self, db: Connection, worker: str | None) -> None:
        queue_with_slots(db, 1)
        assert release(db, worker=worker) is False
        assert statuses(db, "lease_owner") == [("w",)]
        release(db)
        assert release(db, worker=worker) is False

    def test_whoever_lost_the_lease_is_refused(self, db: Connection) -> None:
        queue_with_slots(db, 1)
        ((message, *_),) = publish_and_receive(db)
        expire(db)
        claim(db, worker="heir")
        for call in (
            lambda: receive(db, 0, 1),
            lambda: ack(db, 0, 1),
            lambda: nack(db, message, 0, 1),
        ):
            with refused("PQ012", "is not leased by", '"heir" holds it under epoch 2'):
                call()
        assert rows(db, "select * from pgque.retry_queue") == []

    def test_the_heir_of_a_page_receives_before_he_acks(self, db: Connection) -> None:
        queue_with_slots(db, 1)
        publish_and_receive(db)
        expire(db)
        claim(db, worker="heir")
        assert ack(db, 0, 1, "heir") == 0
        assert texts(receive(db, 0, 1, "heir")) == ["a"]
        assert ack(db, 0, 1, "heir") == 1

    @pytest.mark.parametrize("worker", ["w", None])
    def test_without_a_lease_nothing_is_received(self, db: Connection, worker: str | None) -> None:
        queue_with_slots(db, 1)
        release(db)
        with refused("PQ012", "nobody holds it"):
            receive(db, 0, 1, worker)

    def test_of_two_claims_at_once_one_wins(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        queue_with_slots(db, 1)
        release(db)
        second = another()
        with db.transaction():
            assert claim(db) == 2
            answer = background.submit(claim, second, 0, "other")
            wait_until_blocked(another(), second)
        assert answer.result() is None

    def test_a_claim_that_is_rolled_back_leaves_the_slot_to_the_other(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        queue_with_slots(db, 1)
        release(db)
        second = another()
        with db.transaction(force_rollback=True):
            claim(db)
            answer = background.submit(claim, second, 0, "other")
            wait_until_blocked(another(), second)
        assert answer.result() == 2

    def test_an_ack_waits_for_a_take_over_and_is_refused(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        queue_with_slots(db, 1)
        publish_and_receive(db)
        expire(db)
        second = another()
        with db.transaction():
            claim(db, worker="heir")
            answer = background.submit(ack, second, 0, 1)
            wait_until_blocked(another(), second)
        with refused("PQ012", '"heir" holds it'):
            answer.result()

    def test_idle_workers_write_only_to_keep_their_lease(self, db: Connection) -> None:
        queue_with_slots(db, 1)
        written = "select max(pos_seq) from pgque.position_log"
        receive(db, 0, 1)
        before = value(db, written)
        for _ in range(5):
            assert receive(db, 0, 1) == []
        assert value(db, written) == before
        claim(db, ttl="0.2 seconds")
        db.execute("select pg_sleep(0.15)")
        receive(db, 0, 1)
        assert value(db, written) == before + 2

    def test_slots_survive_a_compaction(self, db: Connection) -> None:
        queue_with_slots(db, 1)
        publish_keyed(db, ("k", "a"), ("k", "b"))
        receive(db, 0, 1, most=1)
        ack(db, 0, 1)
        receive(db, 0, 1, most=1)
        assert compact_positions(db) > 0
        compact_ticks(db)
        assert ack(db, 0, 1) == 1
        assert drain_slot(db, 0, 1) == []
        assert statuses(db, "lease_owner", "epoch") == [("w", 1)]
