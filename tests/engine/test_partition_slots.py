"""Slots of a partitioned consumer: how they come, who holds them, and what is left when they go."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.queues import (
    Connection,
    compact_positions,
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
    drain_slot,
    nack,
    publish_keyed,
    queue_with_slots,
    receive,
    release,
    send_keyed,
    slot_of,
    statuses,
    subscribe,
    texts,
    unsubscribe,
)

Another = Callable[[], Connection]

TABLES = ("partition_consumer", "partition_slot_base", "partition_held", "subscription_base")


def left_over(db: Connection) -> dict[str, int]:
    counts = {name: value(db, f"select count(*) from pgque.{name}") for name in TABLES}
    return {name: count for name, count in counts.items() if count}


def expire(db: Connection, slot: int = 0) -> None:
    """Ends the slot's lease as its time would."""
    db.execute(
        "update pgque.position_log p set lease_until = now() - interval '1 second'"
        " from pgque.slot_state s where p.sub_id = s.sub_id and p.pos_seq = s.pos_seq"
        " and s.slot = %s",
        [slot],
    )


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
        with refused("PQ005", 'consumer "c" on queue "q" has 2 slots, not 3', "unsubscribe_slot"):
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


def publish_and_receive(db: Connection) -> list[tuple[object, ...]]:
    publish_keyed(db, ("k", "a"))
    return receive(db, 0, 1)


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


class TestWrongUse:
    @pytest.mark.parametrize(
        ("slot", "n"), [(2, 2), (-1, 2), (0, 0), (0, 257), (None, 2), (0, None)]
    )
    def test_impossible_slots_are_refused(
        self, db: Connection, slot: int | None, n: int | None
    ) -> None:
        make_queue(db, consumers=())
        with refused("PQ005", "cannot have a slot", "1 to 256 slots"):
            subscribe(db, slot, n)
        assert left_over(db) == {}

    @pytest.mark.parametrize("consumer", ["", None])
    def test_a_consumer_without_a_name_is_refused(
        self, db: Connection, consumer: str | None
    ) -> None:
        make_queue(db, consumers=())
        with refused("PQ005", "Name the consumer"):
            value(db, "select pgque.subscribe_slot('q', %s, 0, 2)", consumer)

    @pytest.mark.parametrize(
        "call",
        [
            "subscribe_slot('none', 'c', 0, 1)",
            "unsubscribe_slot('none', 'c', 0)",
            "set_partition_policy('none', 'c', 'skip')",
            "claim_slot('none', 'c', 0, 'w')",
            "release_slot('none', 'c', 0, 'w')",
            "receive_partitioned('none', 'c', 0, 1, 'w')",
            "ack_partitioned('none', 'c', 0, 1, 'w')",
            "nack_partitioned('none', 'c', 0, 1, 'w', null)",
        ],
    )
    def test_an_unknown_queue_is_named(self, db: Connection, call: str) -> None:
        with refused("PQ001", 'queue "none" does not exist'):
            db.execute(f"select pgque.{call}".encode())

    @pytest.mark.parametrize(
        "call",
        [
            "unsubscribe_slot('q', 'c', 1)",
            "claim_slot('q', 'c', 1, 'w')",
            "release_slot('q', 'c', 1, 'w')",
            "receive_partitioned('q', 'c', 1, 2, 'w')",
            "ack_partitioned('q', 'c', 1, 2, 'w')",
            "nack_partitioned('q', 'c', 1, 2, 'w', null)",
        ],
    )
    def test_a_slot_that_is_only_reserved_cannot_be_used(self, db: Connection, call: str) -> None:
        make_queue(db, consumers=())
        subscribe(db, 0, 2)
        with refused("PQ002", 'slot 1 of consumer "c" is not subscribed', "subscribe_slot"):
            db.execute(f"select pgque.{call}".encode())

    @pytest.mark.parametrize("n", [3, None])
    def test_a_wrong_number_of_slots_is_refused(self, db: Connection, n: int | None) -> None:
        queue_with_slots(db, 2)
        for call in (receive, ack):
            with refused("PQ005", "has 2 slots, not"):
                call(db, 0, n)  # type: ignore[operator]
        with refused("PQ005", "has 2 slots, not"):
            nack(db, 1, 0, n)  # type: ignore[arg-type]

    @pytest.mark.parametrize("ttl", ["0", "-1 second", None, "2 days"])
    def test_an_impossible_lease_is_refused(self, db: Connection, ttl: str | None) -> None:
        queue_with_slots(db, 1)
        with refused("PQ005", "no lease for worker"):
            claim(db, worker="other", ttl=ttl)  # type: ignore[arg-type]

    @pytest.mark.parametrize("worker", ["", None])
    def test_a_worker_without_a_name_is_refused(self, db: Connection, worker: str | None) -> None:
        queue_with_slots(db, 1)
        with refused("PQ005", "Name the worker"):
            claim(db, worker=worker)  # type: ignore[arg-type]

    @pytest.mark.parametrize("most", [0, -1, None])
    def test_an_empty_page_cannot_be_asked_for(self, db: Connection, most: int | None) -> None:
        queue_with_slots(db, 1)
        with refused("PQ005", "no page has"):
            receive(db, 0, 1, most=most)

    @pytest.mark.parametrize("after", ["-1 second", None])
    def test_an_impossible_retry_is_refused(self, db: Connection, after: str | None) -> None:
        queue_with_slots(db, 1)
        ((message, *_),) = publish_and_receive(db)
        with refused("PQ005", "no retry after"):
            nack(db, message, 0, 1, after=after)  # type: ignore[arg-type]

    def test_only_events_of_the_page_can_be_nacked(self, db: Connection) -> None:
        queue_with_slots(db, 2)
        key_of = {slot_of(db, key, 2): key for key in "abcdefgh"}
        foreign, own, later = publish_keyed(
            db, (key_of[1], "x"), (key_of[0], "y"), (key_of[0], "z")
        )
        receive(db, 0, most=1)
        for message in (foreign, later, 999, None):
            with refused("PQ009", "is not in the page that slot 0"):
                nack(db, message)
        assert nack(db, own) == 1
        ack(db)
        with refused("PQ009"):
            nack(db, own)

    @pytest.mark.parametrize("policy", ["wait", "", None])
    def test_an_unknown_policy_is_refused(self, db: Connection, policy: str | None) -> None:
        queue_with_slots(db, 1)
        with refused("PQ005", "there is no policy", "skip"):
            value(db, "select pgque.set_partition_policy('q', 'c', %s)", policy)

    def test_the_policy_of_an_unknown_consumer_is_refused(self, db: Connection) -> None:
        make_queue(db)
        with refused("PQ002", 'consumer "c" has no slots on queue "q"'):
            value(db, "select pgque.set_partition_policy('q', 'c', 'pause')")

    @pytest.mark.parametrize(
        "call",
        [
            "next_batch('q', 'c#0/1')",
            "next_batch_custom('q', 'c#0/1', null, null, null)",
            "receive('q', 'c#0/1')",
            "claim_batch('q', 'c#0/1', 'me')",
            "register_subconsumer('q', 'c#0/1', 'sub', true)",
            "register_consumer_at('q', 'c#0/1', 1)",
            "unregister_consumer('q', 'c#0/1')",
            "unsubscribe('q', 'c#0/1')",
        ],
    )
    def test_a_slot_is_no_plain_consumer(self, db: Connection, call: str) -> None:
        queue_with_slots(db, 1)
        with refused("PQ015", 'consumer "c#0/1" on queue "q" is a slot of a partitioned one'):
            db.execute(f"select pgque.{call}".encode())

    @pytest.mark.parametrize(
        "call",
        [
            "ack({batch})",
            "finish_batch({batch})",
            "ack_batch({batch}, 'w', 1)",
            "renew_batch({batch}, 'w', 1)",
            "release_batch({batch}, 'w', 1)",
            "nack({batch}, row({id},{batch},'','',0,now(),'','','','')::pgque.message)",
        ],
    )
    def test_the_batch_of_a_slot_is_not_settled_past_its_lease(
        self, db: Connection, call: str
    ) -> None:
        queue_with_slots(db, 1)
        ((message, batch, *_),) = publish_and_receive(db)
        expire(db)
        with refused("PQ015", "is a slot of a partitioned one"):
            db.execute(f"select pgque.{call.format(batch=batch, id=message)}".encode())
        assert texts(receive(db, 0, 1)) == ["a"]


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
