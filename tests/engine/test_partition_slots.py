"""Slots of a partitioned consumer: how they come, what they show, and what is left when they go."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.queues import (
    Connection,
    compact_ticks,
    make_queue,
    next_batch,
    queue_id,
    refused,
    rotate,
    rows,
    stored_payloads,
    tick,
    value,
    wait_until_blocked,
)
from tests.support.slots import (
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
    send_keyed,
    statuses,
    subscribe,
    texts,
    unsubscribe,
)

Another = Callable[[], Connection]


class TestSubscribing:
    def test_a_slot_that_is_subscribed_late_misses_nothing(self, db: Connection) -> None:
        make_queue(db, consumers=())
        subscribe(db, 0, 2)
        keys = [f"key {number}" for number in range(20)]
        publish_keyed(db, *((key, key) for key in keys))
        claim(db, 0)
        early = drain_slot(db, 0)
        rotate(db)
        compact_ticks(db)
        subscribe(db, 1, 2)
        claim(db, 1)
        late = drain_slot(db, 1)
        assert early and late
        assert sorted(early + late) == sorted(keys)

    def test_all_slots_start_at_one_tick_even_while_ticks_are_made(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        make_queue(db, consumers=())
        second = another()
        subscribing = background.submit(subscribe, second, 0, 64)
        while not subscribing.done():
            tick(db)
        subscribing.result()
        assert len(set(statuses(db, "last_tick"))) == 1

    def test_subscribing_again_changes_nothing(self, db: Connection) -> None:
        queue_with_slots(db, 2)
        publish_keyed(db, (None, "a"))
        drain_slot(db)
        before = statuses(db, "slot", "last_tick", "epoch", "lease_owner")
        subscribe(db, 0, 2)
        assert statuses(db, "slot", "last_tick", "epoch", "lease_owner") == before

    def test_another_number_of_slots_is_refused_until_all_are_ended(self, db: Connection) -> None:
        queue_with_slots(db, 2)
        with refused("PQ005", 'consumer "c" on queue "q" has 2 slots, not 3', "pgque.repartition"):
            subscribe(db, 2, 3)
        unsubscribe(db, 0)
        with refused("PQ005", "has 2 slots, not 3"):
            subscribe(db, 2, 3)
        unsubscribe(db, 1)
        subscribe(db, 2, 3)
        assert statuses(db, "slot", "n", "subscribed") == [
            (0, 3, False),
            (1, 3, False),
            (2, 3, True),
        ]

    def test_a_slot_that_comes_back_starts_at_the_last_tick(self, db: Connection) -> None:
        queue_with_slots(db, 1)
        subscribe_other = "select pgque.subscribe_slot('q', 'other', 0, 2)"
        value(db, subscribe_other)
        value(db, "select pgque.subscribe_slot('q', 'other', 1, 2)")
        value(db, "select pgque.unsubscribe_slot('q', 'other', 0)")
        publish_keyed(db, (None, "given up"))
        value(db, subscribe_other)
        publish_keyed(db, (None, "new"))
        value(db, "select pgque.claim_slot('q', 'other', 0, 'w')")
        page = rows(db, "select payload from pgque.receive_partitioned('q', 'other', 0, 2, 'w')")
        assert page == [("new",)]

    def test_two_consumers_each_get_all(self, db: Connection) -> None:
        queue_with_slots(db, 1)
        value(db, "select pgque.subscribe('q', 'plain')")
        publish_keyed(db, ("k", "a"))
        assert drain_slot(db, 0, 1) == ["a"]
        assert value(db, "select payload from pgque.receive('q', 'plain')") == "a"

    def test_a_name_that_is_taken_is_refused_and_nothing_is_made(self, db: Connection) -> None:
        make_queue(db, consumers=("c#1/2",))
        publish_keyed(db, ("k", "a"))
        with refused("PQ015", 'consumer "c#1/2" on queue "q" is another one'):
            subscribe(db, 0, 2)
        assert left_over(db) == {"subscription_base": 1}
        assert next_batch(db, consumer="c#1/2") is not None

    def test_two_sessions_may_subscribe_at_once(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        make_queue(db, consumers=())
        second = another()
        with db.transaction():
            subscribe(db, 0, 2)
            done = background.submit(subscribe, second, 1, 2)
            wait_until_blocked(another(), second)
        done.result()
        assert statuses(db, "slot", "subscribed") == [(0, True), (1, True)]


class TestStatus:
    def test_it_shows_holder_and_backlog(self, db: Connection) -> None:
        queue_with_slots(db, 2)
        release(db, 1)
        publish_keyed(db, ("k", "a"), ("k", "b"), (None, "c"))
        drain_slot(db, 0)
        shown = statuses(
            db, "queue_name", "consumer", "slot", "n", "lease_owner", "epoch", "pending_events"
        )
        assert shown == [("q", "c", 0, 2, "w", 1, 0), ("q", "c", 1, 2, None, 1, 3)]
        assert all(lag.total_seconds() > 0 for (lag,) in statuses(db, "lag"))

    def test_slots_are_listed_among_the_consumers(self, db: Connection) -> None:
        queue_with_slots(db, 2)
        names = rows(db, "select consumer_name from pgque.get_consumer_info('q')")
        assert names == [("c#0/2",), ("c#1/2",)]

    def test_leases_are_readable_as_a_table(self, db: Connection) -> None:
        queue_with_slots(db, 1)
        shown = rows(db, "select queue_id, co_name, slot, lease_owner, lease_ttl::text, epoch"
                         " from pgque.partition_slot")  # fmt: skip
        assert shown == [(queue_id(db), "c", 0, "w", "00:00:30", 1)]


class TestSpace:
    def test_rotation_waits_for_the_slowest_slot(self, db: Connection) -> None:
        queue_with_slots(db, 2)
        publish_keyed(db, ("a", "one"), ("b", "two"), ("c", "three"))
        drain_slot(db, 0)
        for _ in range(4):
            tick(db)
            rotate(db)
        assert "one" in stored_payloads(db)
        drain_slot(db, 1)
        for _ in range(4):
            tick(db)
            rotate(db)
            drain_slot(db, 0)
            drain_slot(db, 1)
        assert stored_payloads(db) == set()


class TestEnding:
    def test_the_last_slot_leaves_nothing_behind(self, db: Connection) -> None:
        queue_with_slots(db, 3, policy="pause", max_retries="0")
        unsubscribe(db, 1)
        fail_in_each(db, slots=(0, 2))
        unsubscribe(db, 0)
        unsubscribe(db, 2)
        assert left_over(db) == {}
        assert rows(db, "select * from pgque.dead_letter") == []
        assert rows(db, "select * from pgque.retry_queue") == []

    def test_reserved_slots_go_with_the_last_subscribed_one(self, db: Connection) -> None:
        make_queue(db, consumers=())
        subscribe(db, 1, 4)
        unsubscribe(db, 1)
        assert left_over(db) == {}

    def test_one_slot_goes_without_the_others(self, db: Connection) -> None:
        queue_with_slots(db, 2)
        unsubscribe(db, 1)
        publish_keyed(db, (None, "a"))
        assert drain_slot(db, 0) == ["a"]
        with refused("PQ002", 'slot 1 of consumer "c" is not subscribed on queue "q"'):
            receive(db, 1)

    @pytest.mark.parametrize(("queue", "consumer"), [("q", "other"), ("elsewhere", "c")])
    def test_a_slot_does_not_wait_for_another_consumer(
        self, db: Connection, another: Another, queue: str, consumer: str
    ) -> None:
        queue_with_slots(db, 2)
        make_queue(db, "elsewhere", consumers=())
        value(db, "select pgque.subscribe_slot(%s, %s, 0, 1)", queue, consumer)
        busy = another()
        db.execute("set lock_timeout = '1 s'")
        with busy.transaction():
            value(busy, "select pgque.set_partition_policy(%s, %s, 'pause')", queue, consumer)
            unsubscribe(db, 1)
        assert statuses(db, "slot") == [(0,), (0,)]

    @pytest.mark.parametrize(("queue", "consumer"), [("q", "other"), ("elsewhere", "c")])
    @pytest.mark.parametrize(("policy", "retries"), [("skip", "5"), ("pause", "5"), ("skip", "0")])
    def test_takes_nothing_from_another_consumer(
        self, db: Connection, queue: str, consumer: str, policy: str, retries: str
    ) -> None:
        queue_with_slots(db, 2)
        before = consumer_with_failures(db, queue, consumer, 2, policy, max_retries=retries)
        unsubscribe(db, 0)
        unsubscribe(db, 1)
        assert failures(db, queue, consumer) == before != []
        assert statuses(db, "queue_name", "consumer", "slot") == [
            (queue, consumer, 0),
            (queue, consumer, 1),
        ]

    @pytest.mark.parametrize(("queue", "consumer"), [("q", "other"), ("elsewhere", "c")])
    def test_the_last_slot_leaves_nothing_behind_beside_another_consumer(
        self, db: Connection, queue: str, consumer: str
    ) -> None:
        make_queue(db, consumers=())
        make_queue(db, "elsewhere", consumers=())
        value(db, "select pgque.subscribe_slots(%s, %s, 2)", queue, consumer)
        before = left_over(db)
        subscribe(db, 1, 4)
        unsubscribe(db, 1)
        assert left_over(db) == before

    def test_a_dropped_queue_takes_its_slots_along(self, db: Connection) -> None:
        queue_with_slots(db, 2, policy="pause")
        fail_in_each(db, slots=(0, 1))
        with refused("PQ007", '"c#0/2", "c#1/2"'):
            value(db, "select pgque.drop_queue('q')")
        value(db, "select pgque.drop_queue('q', true)")
        assert left_over(db) == {}

    def test_installing_again_keeps_slots_and_pages(
        self, db: Connection, database_url: str
    ) -> None:
        from pgque_dagster import installer

        queue_with_slots(db, 1, policy="pause")
        publish_keyed(db, ("k", "a"), ("k", "b"), ("l", "c"))
        first, *_ = receive(db, 0, 1, most=2)
        nack(db, first[0], 0, 1)
        ack(db, 0, 1)
        installer.install(database_url)
        assert drain_slot(db, 0, 1) == ["a", "b", "c"]


def fail_in_each(db: Connection, slots: tuple[int, ...]) -> None:
    """A failed event, one that waits for it, and a retry or dead letter of each slot."""
    n = value(db, "select n from pgque.partition_consumer")
    publish_keyed(db, *((f"k{number}", "x") for number in range(30) for _ in range(2)))
    for slot in slots:
        first, *_ = receive(db, slot, n)
        nack(db, first[0], slot, n)
        ack(db, slot, n)


class TestRights:
    @pytest.fixture
    def reader(self, db: Connection) -> Connection:
        """A session of a role that may only read."""
        queue_with_slots(db, 1)
        publish_keyed(db, ("k", "a"))
        db.execute("set role pgque_reader")
        return db

    def test_a_reader_needs_no_more_for_a_whole_cycle(self, reader: Connection) -> None:
        subscribe(reader, 0, 2, "mine")
        value(reader, "select pgque.set_partition_policy('q', 'mine', 'pause')")
        assert texts(receive(reader, 0, 1)) == ["a"]
        assert ack(reader, 0, 1) == 1
        assert statuses(reader, "consumer", "slot") == [("c", 0), ("mine", 0), ("mine", 1)]
        unsubscribe(reader, 0)

    @pytest.mark.parametrize("table", ["partition_consumer", "partition_held"])
    def test_nobody_writes_the_tables_by_hand(self, reader: Connection, table: str) -> None:
        with refused("42501"):
            reader.execute(f"delete from pgque.{table}".encode())


def test_events_of_transactions_at_once_reach_their_slots(db: Connection, another: Another) -> None:
    """The second tick's snapshot has one of them in progress."""
    queue_with_slots(db, 2)
    slow = another()
    with slow.transaction():
        send_keyed(slow, ("k", "slow"), (None, "slow"))
        publish_keyed(db, ("k", "fast"), (None, "fast"))
        early = drain_slot(db, 0) + drain_slot(db, 1)
    tick(db)
    late = drain_slot(db, 0) + drain_slot(db, 1)
    assert (early, late) == (["fast", "fast"], ["slow", "slow"])
