"""What a slot delivers: each event once to one slot, each key in order, whatever fails."""

import time
from collections import Counter

import pytest

from tests.support.queues import PATIENCE_SECONDS, Connection, rows, send, tick, value
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
    texts,
)

HOUR = "1 hour"


def one_slot(db: Connection, policy: str = "pause", **config: str) -> None:
    queue_with_slots(db, 1, policy=policy, **config)


def page_of(db: Connection, most: int = 100) -> list[str]:
    """The payloads of the slot's page."""
    return texts(receive(db, 0, 1, most=most))


def page_acked(db: Connection, most: int = 100) -> list[str]:
    seen = page_of(db, most)
    ack(db, 0, 1)
    return seen


def fail(db: Connection, payload: str, after: str = "0") -> None:
    """Receives the page and nacks the message with this payload."""
    ((message, *_),) = [each for each in receive(db, 0, 1) if each[3] == payload]
    assert nack(db, message, 0, 1, after=after) == 1


def make_due(db: Connection) -> None:
    """Lets the waiting time of held events be over."""
    db.execute("update pgque.partition_held set retry_after = now() where retry_after is not null")


def held(db: Connection) -> list[tuple[str, int]]:
    return rows(
        db, "select ev_data, coalesce(ev_retry, 0) from pgque.partition_held order by ev_id"
    )


class TestSharing:
    @pytest.mark.parametrize("n", [1, 2, 3, 8])
    def test_each_event_is_in_one_slot_and_each_key_in_order(self, db: Connection, n: int) -> None:
        queue_with_slots(db, n)
        keyed = [(f"key {number % 13}", f"{number % 13}/{number}") for number in range(100)]
        publish_keyed(db, *keyed)
        pages = [receive(db, slot, n, most=1000) for slot in range(n)]
        assert Counter(text for page in pages for text in texts(page)) == Counter(
            payload for _, payload in keyed
        )
        for slot, page in enumerate(pages):
            ids = [message[0] for message in page]
            assert ids == sorted(ids)
            assert {slot_of(db, message[6], n) for message in page} <= {slot}

    def test_slots_are_numbered_as_documented(self, db: Connection) -> None:
        """These numbers must never change: positions in the middle of a queue rest on them."""
        numbers = {"a": 1, "b": 0, "order-1": 3, "ü": 4, "": 5}
        queue_with_slots(db, 8)
        publish_keyed(db, *((key, key) for key in numbers))
        found = {text: slot for slot in range(8) for text in drain_slot(db, slot, 8)}
        assert found == numbers
        assert {key: slot_of(db, key, 8) for key in numbers} == numbers

    def test_events_without_a_key_are_in_the_first_slot(self, db: Connection) -> None:
        queue_with_slots(db, 3)
        send(db, "a", "b")
        tick(db)
        assert [drain_slot(db, slot, 3) for slot in range(3)] == [["a", "b"], [], []]


class TestPages:
    def test_small_pages_lose_nothing(self, db: Connection) -> None:
        one_slot(db)
        publish_keyed(db, *((f"k{number % 4}", str(number)) for number in range(10)))
        pages = [page_acked(db, most=3) for _ in range(5)]
        assert pages == [["0", "1", "2"], ["3", "4", "5"], ["6", "7", "8"], ["9"], []]

    def test_a_page_that_ends_with_its_batch_is_followed_by_the_next_batch(
        self, db: Connection
    ) -> None:
        one_slot(db)
        publish_keyed(db, ("k", "a"), ("k", "b"))
        assert page_acked(db, most=2) == ["a", "b"]
        publish_keyed(db, ("k", "c"))
        assert page_acked(db, most=2) == ["c"]

    def test_without_an_ack_the_page_comes_again(self, db: Connection) -> None:
        one_slot(db)
        publish_keyed(db, ("k", "a"), ("k", "b"))
        assert page_of(db) == page_of(db) == ["a", "b"]

    def test_an_ack_covers_what_the_last_receive_returned(self, db: Connection) -> None:
        one_slot(db)
        publish_keyed(db, ("k", "a"), ("k", "b"), ("k", "c"))
        assert page_of(db) == ["a", "b", "c"]
        assert page_acked(db, most=1) == ["a"]
        assert page_of(db) == ["b", "c"]

    def test_an_ack_of_nothing_says_so(self, db: Connection) -> None:
        one_slot(db)
        publish_keyed(db, ("k", "a"))
        assert ack(db, 0, 1) == 0
        page_of(db)
        assert [ack(db, 0, 1), ack(db, 0, 1)] == [1, 0]

    def test_a_page_spans_the_ticks_of_a_backlog(self, db: Connection) -> None:
        one_slot(db)
        for number in range(4):
            publish_keyed(db, ("k", str(number)))
        assert page_acked(db, most=3) == ["0", "1", "2"]
        assert page_acked(db, most=3) == ["3"]

    def test_batches_of_other_slots_are_passed(self, db: Connection) -> None:
        queue_with_slots(db, 2)
        for _ in range(3):
            publish_keyed(db, (None, "x"))
        assert drain_slot(db, 1) == []
        assert statuses(db, "last_tick") == [(1,), (4,)]

    def test_expired_events_are_in_no_page(self, db: Connection) -> None:
        one_slot(db, event_ttl="1 hour")
        publish_keyed(db, ("k", "old"), ("k", "new"))
        db.execute(
            "update pgque.event_1 set ev_time = ev_time - interval '2 hours' where ev_data = 'old'"
        )
        assert page_acked(db) == ["new"]
        assert page_of(db) == []

    def test_a_page_that_rolls_back_comes_again(self, db: Connection) -> None:
        one_slot(db)
        publish_keyed(db, ("k", "a"))
        with db.transaction(force_rollback=True):
            page_acked(db)
        assert page_of(db) == ["a"]


class TestSkip:
    def test_later_events_of_a_failed_key_go_on(self, db: Connection) -> None:
        one_slot(db, "skip")
        publish_keyed(db, ("k", "a"), ("k", "b"))
        fail(db, "a", HOUR)
        ack(db, 0, 1)
        publish_keyed(db, ("k", "c"))
        assert page_acked(db) == ["c"]
        assert value(db, "select ev_data from pgque.retry_queue") == "a"

    def test_a_failed_event_comes_again_to_its_slot_only(self, db: Connection) -> None:
        queue_with_slots(db, 3)
        slot = slot_of(db, "k", 3)
        (message,) = publish_keyed(db, ("k", "a"))
        receive(db, slot, 3)
        nack(db, message, slot, 3)
        ack(db, slot, 3)
        value(db, "select pgque.maint_retry_events()")
        tick(db)
        found = {number: receive(db, number, 3) for number in range(3)}
        assert {number: texts(page) for number, page in found.items() if page} == {slot: ["a"]}
        assert found[slot][0][4] == 1

    def test_without_retries_left_it_is_a_dead_letter(self, db: Connection) -> None:
        one_slot(db, "skip", max_retries="0")
        publish_keyed(db, ("k", "a"))
        fail(db, "a")
        assert page_acked(db) == ["a"]
        assert rows(db, "select consumer_name from pgque.dlq_summary('q')") == [("c#0/1",)]


class TestPause:
    def test_later_events_of_a_failed_key_wait_and_others_go_on(self, db: Connection) -> None:
        one_slot(db)
        publish_keyed(db, ("k", "k1"), ("l", "l1"), ("k", "k2"), ("l", "l2"))
        fail(db, "k1", HOUR)
        assert page_acked(db) == ["l1", "l2"]
        publish_keyed(db, ("k", "k3"), ("l", "l3"))
        assert drain_slot(db, 0, 1) == ["l3"]
        assert held(db) == [("k1", 1), ("k2", 0), ("k3", 0)]

    def test_when_the_retry_succeeds_they_come_in_order(self, db: Connection) -> None:
        one_slot(db)
        publish_keyed(db, ("k", "k1"), ("k", "k2"))
        fail(db, "k1", HOUR)
        ack(db, 0, 1)
        publish_keyed(db, ("k", "k3"))
        assert drain_slot(db, 0, 1) == []
        publish_keyed(db, ("k", "k4"))
        make_due(db)
        assert drain_slot(db, 0, 1, most=2) == ["k1", "k2", "k3", "k4"]
        assert held(db) == []

    def test_when_it_fails_again_they_wait_again(self, db: Connection) -> None:
        one_slot(db)
        publish_keyed(db, ("k", "k1"), ("k", "k2"))
        fail(db, "k1", HOUR)
        ack(db, 0, 1)
        make_due(db)
        fail(db, "k1", HOUR)
        ack(db, 0, 1)
        assert page_of(db) == []
        assert held(db) == [("k1", 2), ("k2", 0)]

    def test_when_it_dies_they_go_on(self, db: Connection) -> None:
        one_slot(db, max_retries="1")
        publish_keyed(db, ("k", "k1"), ("k", "k2"))
        fail(db, "k1")
        ack(db, 0, 1)
        fail(db, "k1")
        ack(db, 0, 1)
        assert page_acked(db) == ["k2"]
        assert rows(db, "select ev_data, ev_retry, dl_reason from pgque.dead_letter") == [
            ("k1", 1, "max retries exceeded")
        ]
        assert (page_of(db), held(db)) == ([], [])

    def test_without_retries_left_later_events_of_the_page_come_again(self, db: Connection) -> None:
        one_slot(db, max_retries="0")
        publish_keyed(db, ("k", "k1"), ("l", "l1"), ("k", "k2"))
        fail(db, "k1")
        ack(db, 0, 1)
        assert (page_of(db), held(db)) == (["k2"], [("k2", 0)])

    def test_events_behind_several_dead_letters_of_a_page_come_again(self, db: Connection) -> None:
        one_slot(db, max_retries="0")
        publish_keyed(db, ("k", "k1"), ("k", "k2"), ("k", "k3"), ("k", "k4"))
        for payload in ("k1", "k2"):
            fail(db, payload)
            ack(db, 0, 1)
        assert drain_slot(db, 0, 1) == ["k3", "k4"]
        assert held(db) == []

    def test_what_waits_longer_than_a_dead_letter_still_waits(self, db: Connection) -> None:
        one_slot(db, max_retries="1")
        value(db, "select nextval('pgque.event_1_id_seq')")
        publish_keyed(db, ("k", "k2"), ("k", "k3"))
        fail(db, "k2", HOUR)
        ack(db, 0, 1)
        db.execute(
            "select pgque.insert_event_raw('q', 1, now(), null, null, 't', 'k1', 'k',"
            " null, null, null)"
        )
        tick(db)
        fail(db, "k1")
        ack(db, 0, 1)
        fail(db, "k1")
        ack(db, 0, 1)
        assert (page_of(db), held(db)) == ([], [("k2", 1), ("k3", 0)])

    def test_a_dead_letter_without_a_key_brings_nothing_again(self, db: Connection) -> None:
        one_slot(db, max_retries="0")
        publish_keyed(db, (None, "a"), (None, "b"))
        fail(db, "a")
        ack(db, 0, 1)
        assert (page_of(db), held(db)) == ([], [])

    def test_a_later_event_of_the_page_can_fail_alone(self, db: Connection) -> None:
        one_slot(db)
        publish_keyed(db, ("k", "k1"), ("k", "k2"), ("k", "k3"))
        fail(db, "k2", HOUR)
        ack(db, 0, 1)
        assert held(db) == [("k2", 1), ("k3", 0)]

    def test_a_nack_of_a_waiting_event_costs_it_no_retry(self, db: Connection) -> None:
        one_slot(db)
        first, second = publish_keyed(db, ("k", "k1"), ("k", "k2"))
        page_of(db)
        assert nack(db, first, 0, 1, after=HOUR) == 1
        assert nack(db, second, 0, 1) == 1
        assert nack(db, first, 0, 1) == 1
        ack(db, 0, 1)
        assert held(db) == [("k1", 1), ("k2", 0)]
        make_due(db)
        page_of(db)
        nack(db, first, 0, 1, after=HOUR)
        nack(db, second, 0, 1)
        ack(db, 0, 1)
        assert held(db) == [("k1", 2), ("k2", 0)]

    def test_events_without_a_key_wait_for_none(self, db: Connection) -> None:
        one_slot(db)
        publish_keyed(db, (None, "a"), (None, "b"))
        fail(db, "a", HOUR)
        ack(db, 0, 1)
        publish_keyed(db, (None, "c"))
        assert page_of(db) == ["c"]
        assert held(db) == []

    def test_who_takes_over_after_a_nack_does_not_get_ahead(self, db: Connection) -> None:
        one_slot(db)
        publish_keyed(db, ("k", "k1"), ("l", "l1"), ("k", "k2"))
        fail(db, "k1", HOUR)
        release(db)
        claim(db)
        assert page_acked(db) == ["l1"]
        make_due(db)
        assert page_acked(db) == ["k1", "k2"]

    def test_small_pages_of_a_failed_key_lose_nothing(self, db: Connection) -> None:
        one_slot(db)
        publish_keyed(db, *(("k", f"k{number}") for number in range(7)), ("l", "l"))
        ((first, *_),) = receive(db, 0, 1, most=1)
        nack(db, first, 0, 1, after=HOUR)
        ack(db, 0, 1)
        assert drain_slot(db, 0, 1, most=1) == ["l"]
        make_due(db)
        assert drain_slot(db, 0, 1, most=3) == [f"k{number}" for number in range(7)]

    def test_a_failed_key_holds_no_rotation_back(self, db: Connection) -> None:
        one_slot(db)
        publish_keyed(db, ("k", "k1"), ("k", "k2"))
        fail(db, "k1", HOUR)
        ack(db, 0, 1)
        assert statuses(db, "last_tick", "pending_events", "held_events") == [(2, 0, 2)]

    def test_back_to_skip_what_waits_still_comes(self, db: Connection) -> None:
        one_slot(db)
        publish_keyed(db, ("k", "k1"), ("k", "k2"))
        fail(db, "k1", HOUR)
        ack(db, 0, 1)
        value(db, "select pgque.set_partition_policy('q', 'c', 'skip')")
        make_due(db)
        assert drain_slot(db, 0, 1) == ["k1", "k2"]

    def test_keys_may_be_long(self, db: Connection) -> None:
        one_slot(db)
        key = "k" * 100_000
        publish_keyed(db, (key, "a"), (key, "b"))
        fail(db, "a")
        ack(db, 0, 1)
        assert drain_slot(db, 0, 1) == ["a", "b"]

    def test_held_events_come_when_their_time_has(self, db: Connection) -> None:
        one_slot(db)
        publish_keyed(db, ("k", "a"))
        fail(db, "a", "2 seconds")
        ack(db, 0, 1)
        assert page_of(db) == []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (seen := page_of(db)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert seen == ["a"]

    def test_a_page_of_held_events_is_acked_once(self, db: Connection) -> None:
        one_slot(db)
        publish_keyed(db, ("k", "k1"), ("k", "k2"))
        page_of(db)
        fail(db, "k1")
        ack(db, 0, 1)
        assert page_of(db, 1) == ["k1"]
        assert [ack(db, 0, 1) for _ in range(2)] == [1, 0]
        assert page_of(db) == ["k2"]

    def test_an_event_that_expires_lets_the_others_go_on(self, db: Connection) -> None:
        one_slot(db, event_ttl="1 hour")
        publish_keyed(db, ("k", "k1"), ("k", "k2"))
        fail(db, "k1", HOUR)
        ack(db, 0, 1)
        db.execute(
            "update pgque.partition_held set ev_time = ev_time - interval '2 hours'"
            " where ev_data = 'k1'"
        )
        assert drain_slot(db, 0, 1) == ["k2"]
        assert held(db) == []

    def test_events_sent_later_with_a_lower_id_come_too(self, db: Connection) -> None:
        """Two transactions of one key at once have no order, but both arrive."""
        one_slot(db)
        value(db, "select nextval('pgque.event_1_id_seq')")
        send_keyed(db, ("k", "k2"))
        tick(db)
        fail(db, "k2", HOUR)
        ack(db, 0, 1)
        db.execute(
            "select pgque.insert_event_raw('q', 1, now(), null, null, 't', 'k1', 'k',"
            " null, null, null)"
        )
        tick(db)
        assert drain_slot(db, 0, 1) == ["k1"]
        make_due(db)
        assert drain_slot(db, 0, 1) == ["k2"]
