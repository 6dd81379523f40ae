"""Slots of a partitioned consumer: how they come, what they show, and what is left when they go."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.queues import slot_batches
from tests.support.queues.slot_batches import KEYS, in_order, publish_round
from tests.support.queues.slots import (
    ack,
    claim,
    consumer_with_failures,
    drain_slot,
    failures,
    left_over,
    nack,
    publish_keyed,
    queue_with_slots,
    receive,
    release,
    statuses,
    subscribe,
    texts,
    unsubscribe,
)
from tests.support.queues.sql import Connection, refused

# Consumers that could be taken for the one under test: of its queue, and of its name.
BESIDE = (("q", "other"), ("elsewhere", "c"))


@pytest.fixture
def two(db: Connection) -> Connection:
    """A queue whose consumer c has two slots, both claimed by w."""
    queue_with_slots(db, 2)
    return db


class TestSubscribing:
    def test_a_slot_that_is_subscribed_late_misses_nothing(self, bare: Connection) -> None:
        subscribe(bare, 0, 2)
        publish_keyed(bare, *((key, key) for key in KEYS))
        claim(bare, 0)
        early = drain_slot(bare, 0)
        bare.rotate()
        bare.compact_ticks()
        subscribe(bare, 1, 2)
        claim(bare, 1)
        late = drain_slot(bare, 1)
        assert early and late
        assert sorted(early + late) == sorted(KEYS)

    def test_all_slots_start_at_one_tick_even_while_ticks_are_made(
        self, bare: Connection, background: ThreadPoolExecutor
    ) -> None:
        subscribing = background.submit(subscribe, bare.another(), 0, 64)
        while not subscribing.done():
            bare.tick()
        subscribing.result()
        assert len(set(statuses(bare, "last_tick"))) == 1

    def test_subscribing_again_changes_nothing(self, two: Connection) -> None:
        publish_keyed(two, (None, "a"))
        drain_slot(two)
        before = statuses(two, "slot", "last_tick", "epoch", "lease_owner")
        subscribe(two, 0, 2)
        assert statuses(two, "slot", "last_tick", "epoch", "lease_owner") == before

    def test_another_number_of_slots_is_refused_until_all_are_ended(self, two: Connection) -> None:
        with refused("PQ005", 'consumer "c" on queue "q" has 2 slots, not 3', "pgque.repartition"):
            subscribe(two, 2, 3)
        with refused("PQ005", "has 2 slots, not 3", "pgque.repartition"):
            slot_batches.subscribe(two, 3)
        unsubscribe(two, 0)
        with refused("PQ005", "has 2 slots, not 3"):
            subscribe(two, 2, 3)
        unsubscribe(two, 1)
        subscribe(two, 2, 3)
        shown = statuses(two, "slot", "n", "subscribed")
        assert shown == [(0, 3, False), (1, 3, False), (2, 3, True)]

    def test_a_slot_that_comes_back_starts_at_the_last_tick(self, two: Connection) -> None:
        unsubscribe(two, 0)
        publish_keyed(two, (None, "given up"))
        subscribe(two, 0, 2)
        publish_keyed(two, (None, "new"))
        claim(two, 0)
        assert texts(receive(two, 0)) == ["new"]

    def test_a_name_that_is_taken_is_refused_and_nothing_is_made(self, db: Connection) -> None:
        db.make_queue(consumers=("c#1/2",))
        publish_keyed(db, ("k", "a"))
        with refused("PQ015", 'the name "c#1/2" on queue "q" belongs to another consumer'):
            subscribe(db, 0, 2)
        assert left_over(db) == {"subscription_base": 1}
        assert db.next_batch(consumer="c#1/2") is not None

    def test_two_sessions_may_subscribe_at_once(self, bare: Connection) -> None:
        with bare.transaction():
            subscribe(bare, 0, 2)
            done = bare.blocked(subscribe, 1, 2)
        done.result()
        assert statuses(bare, "slot", "subscribed") == [(0, True), (1, True)]

    def test_a_slot_that_is_being_subscribed_is_not_ended_with_the_last(
        self, bare: Connection
    ) -> None:
        subscribe(bare, 0, 2)
        with bare.transaction():
            subscribe(bare, 1, 2)
            ended = bare.blocked(unsubscribe, 0)
        ended.result()
        assert statuses(bare, "slot", "subscribed") == [(1, True)]

    def test_all_slots_start_at_the_position_or_at_the_last_tick(self, db: Connection) -> None:
        db.make_queue(consumers=("keeper",))
        publish_round(db, 0)
        assert slot_batches.subscribe(db, 4) == 1
        publish_round(db, 1)
        assert in_order(slot_batches.drain(db, 4)) == {key: [1] for key in KEYS}
        for slot in range(4):
            unsubscribe(db, slot)
        assert slot_batches.subscribe(db, 4, "earliest") == 1
        assert slot_batches.subscribe(db, 4, "latest") == 0
        with refused("PQ005", "soon"):
            slot_batches.subscribe(db, 4, "soon")
        assert in_order(slot_batches.drain(db, 4)) == {key: [0, 1] for key in KEYS}

    def test_slots_beside_another_consumer_start_at_the_position(self, db: Connection) -> None:
        db.make_queue(consumers=("keeper",))
        db.value("select pgque.subscribe_slots('q', 'other', 2)")
        publish_round(db, 0)
        assert slot_batches.subscribe(db, 2, "earliest") == 1
        assert in_order(slot_batches.drain(db, 2)) == {key: [0] for key in KEYS}

    def test_a_consumer_has_either_slots_or_none(self, q: Connection) -> None:
        """Its position would be forgotten. The hint moves it."""
        publish_round(q, 0)
        with pytest.raises(Exception, match="is registered without slots") as caught:
            slot_batches.subscribe(q, 2)
        hint = caught.value.diag.message_hint  # type: ignore[attr-defined]
        statements = hint.partition("transaction: ")[2].replace("slots, '", "2, '")
        with q.transaction():
            q.execute(statements.encode())
        assert in_order(slot_batches.drain(q, 2)) == {key: [0] for key in KEYS}
        with refused("PQ015", '"c"', "unsubscribe_slot"):
            q.value("select pgque.register_consumer('q', 'c')")


def test_the_status_shows_holder_and_backlog(two: Connection) -> None:
    release(two, 1)
    publish_keyed(two, ("k", "a"), ("k", "b"), (None, "c"))
    drain_slot(two, 0)
    shown = statuses(
        two, "queue_name", "consumer", "slot", "n", "lease_owner", "epoch", "pending_events"
    )
    assert shown == [("q", "c", 0, 2, "w", 1, 0), ("q", "c", 1, 2, None, 1, 3)]
    assert all(lag.total_seconds() > 0 for (lag,) in statuses(two, "lag"))
    names = two.rows("select consumer_name from pgque.get_consumer_info('q')")
    assert names == [("c#0/2",), ("c#1/2",)]
    columns = "queue_id, co_name, slot, lease_owner, lease_ttl::text, epoch"
    leases = two.rows(f"select {columns} from pgque.partition_slot order by slot")
    assert leases[0] == (two.queue_id(), "c", 0, "w", "00:00:30", 1)


class TestEnding:
    def test_the_last_slot_leaves_nothing_behind(self, db: Connection) -> None:
        queue_with_slots(db, 3, max_retries="0")
        unsubscribe(db, 1)
        fail_in_each(db, slots=(0, 2))
        unsubscribe(db, 0)
        unsubscribe(db, 2)
        assert left_over(db) == {}
        assert db.rows("select * from pgque.dead_letter") == []
        assert db.rows("select * from pgque.retry_queue") == []

    def test_one_slot_goes_without_the_others(self, two: Connection) -> None:
        unsubscribe(two, 1)
        publish_keyed(two, (None, "a"))
        assert drain_slot(two, 0) == ["a"]
        with refused("PQ002", 'slot 1 of consumer "c" is not subscribed on queue "q"'):
            receive(two, 1)

    def test_the_last_two_slots_may_go_at_once(self, two: Connection) -> None:
        with two.transaction():
            unsubscribe(two, 0)
            second = two.blocked(unsubscribe, 1)
        second.result()
        assert left_over(two) == {}

    def test_reserved_slots_go_with_the_last_subscribed_one_and_wait_for_no_other_consumer(
        self, bare: Connection
    ) -> None:
        bare.make_queue("elsewhere", consumers=())
        for queue, consumer in BESIDE:
            bare.value("select pgque.subscribe_slots(%s, %s, 2)", queue, consumer)
        before = left_over(bare)
        subscribe(bare, 1, 4)
        bare.execute("set lock_timeout = '1 s'")
        with (busy := bare.another()).transaction():
            for queue, consumer in BESIDE:
                busy.value("select pgque.subscribe_slot(%s, %s, 0, 2)", queue, consumer)
            unsubscribe(bare, 1)
        assert left_over(bare) == before

    @pytest.mark.parametrize("retries", ["5", "0"])
    def test_takes_nothing_from_another_consumer(self, two: Connection, retries: str) -> None:
        before = [consumer_with_failures(two, *other, n=2, max_retries=retries) for other in BESIDE]
        unsubscribe(two, 0)
        unsubscribe(two, 1)
        assert [failures(two, *other) for other in BESIDE] == before
        assert [] not in before
        assert statuses(two, "queue_name", "consumer", "slot") == [
            ("elsewhere", "c", 0),
            ("elsewhere", "c", 1),
            ("q", "other", 0),
            ("q", "other", 1),
        ]

    def test_a_dropped_queue_takes_its_slots_along(self, db: Connection) -> None:
        queue_with_slots(db, 2)
        fail_in_each(db, slots=(0, 1))
        with refused("PQ007", '"c#0/2", "c#1/2"'):
            db.value("select pgque.drop_queue('q')")
        db.value("select pgque.drop_queue('q', true)")
        assert left_over(db) == {}


def fail_in_each(db: Connection, slots: tuple[int, ...]) -> None:
    """A retry or dead letter of each slot."""
    n = db.value("select n from pgque.partition_consumer")
    publish_keyed(db, *((f"k{number}", "x") for number in range(30) for _ in range(2)))
    for slot in slots:
        first, *_ = receive(db, slot, n)
        nack(db, first[0], slot, n)
        ack(db, slot, n)
