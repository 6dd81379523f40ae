"""What a slot delivers: each event once to one slot, each key in order, whatever fails."""

from collections import Counter

import pytest

from tests.support.queues import Connection, refused, rows, send, tick, value
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


@pytest.fixture
def one(db: Connection) -> Connection:
    """A queue whose consumer has one slot, with the policy pause."""
    queue_with_slots(db, 1, policy="pause")
    return db


def configure(db: Connection, parameter: str, setting: str) -> None:
    value(db, "select pgque.set_queue_config('q', %s, %s)", parameter, setting)


def page_of(db: Connection, most: int = 100) -> list[str]:
    """The payloads of the slot's page."""
    return texts(receive(db, 0, 1, most=most))


def page_acked(db: Connection, most: int = 100) -> list[str]:
    seen = page_of(db, most)
    ack(db, 0, 1)
    return seen


def fail(db: Connection, payload: str, after: str = "0") -> None:
    """Receives the page, nacks the message with this payload, and acks the page."""
    ((message, *_),) = [each for each in receive(db, 0, 1) if each[3] == payload]
    assert nack(db, message, 0, 1, after=after) == 1
    ack(db, 0, 1)


def make_due(db: Connection) -> None:
    """Lets the waiting time of held events be over."""
    db.execute("update pgque.partition_held set retry_after = now() where retry_after is not null")


def send_older(db: Connection) -> None:
    """An event of the key k with id 1, in a tick of its own."""
    db.execute(
        "select pgque.insert_event_raw('q', 1, now(), null, null, 't', 'k1', 'k', null, null, null)"
    )
    tick(db)


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
        for _ in range(3):
            tick(db)
        assert [drain_slot(db, slot, 3) for slot in range(3)] == [["a", "b"], [], []]
        assert statuses(db, "last_tick") == [(4,)] * 3


class TestPages:
    def test_small_pages_lose_nothing(self, one: Connection) -> None:
        publish_keyed(one, *((f"k{number % 4}", str(number)) for number in range(10)))
        pages = [page_acked(one, most=3) for _ in range(5)]
        assert pages == [["0", "1", "2"], ["3", "4", "5"], ["6", "7", "8"], ["9"], []]

    def test_a_page_may_end_with_its_batch_or_span_ticks(self, one: Connection) -> None:
        publish_keyed(one, ("k", "a"), ("k", "b"))
        assert page_acked(one, most=2) == ["a", "b"]
        for number in range(4):
            publish_keyed(one, ("k", str(number)))
        assert page_acked(one, most=3) == ["0", "1", "2"]
        assert page_acked(one, most=3) == ["3"]

    def test_an_ack_covers_what_the_last_receive_returned(self, one: Connection) -> None:
        publish_keyed(one, ("k", "a"), ("k", "b"), ("k", "c"))
        assert ack(one, 0, 1) == 0
        with one.transaction(force_rollback=True):
            page_acked(one)
        assert page_of(one) == page_of(one) == ["a", "b", "c"]
        assert page_of(one, most=1) == ["a"]
        assert [ack(one, 0, 1), ack(one, 0, 1)] == [1, 0]
        assert page_of(one) == ["b", "c"]

    def test_expired_events_are_in_no_page(self, one: Connection) -> None:
        configure(one, "event_ttl", "1 hour")
        publish_keyed(one, ("k", "old"), ("k", "new"))
        one.execute(
            "update pgque.event_1 set ev_time = ev_time - interval '2 hours' where ev_data = 'old'"
        )
        assert page_acked(one) == ["new"]
        assert page_of(one) == []


class TestSkip:
    def test_later_events_of_a_failed_key_go_on(self, db: Connection) -> None:
        queue_with_slots(db, 1)
        publish_keyed(db, ("k", "a"), ("k", "b"))
        fail(db, "a", HOUR)
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
        queue_with_slots(db, 1, max_retries="0")
        (message,) = publish_keyed(db, ("k", "a"))
        assert (page_of(db), nack(db, message, 0, 1)) == (["a"], 1)
        assert page_acked(db) == ["a"]
        assert rows(db, "select consumer_name from pgque.dlq_summary('q')") == [("c#0/1",)]


class TestPause:
    def test_later_events_of_a_failed_key_wait_and_come_in_order(self, one: Connection) -> None:
        publish_keyed(one, ("k", "k1"), ("l", "l1"), ("k", "k2"), ("l", "l2"))
        (first, *_), *_ = receive(one, 0, 1)
        nack(one, first, 0, 1, after=HOUR)
        assert page_acked(one) == ["l1", "l2"]
        publish_keyed(one, ("k", "k3"), ("l", "l3"))
        assert drain_slot(one, 0, 1) == ["l3"]
        assert held(one) == [("k1", 1), ("k2", 0), ("k3", 0)]
        # It holds no rotation back:
        assert statuses(one, "last_tick", "pending_events", "held_events") == [(3, 0, 3)]
        publish_keyed(one, ("k", "k4"))
        make_due(one)
        assert drain_slot(one, 0, 1, most=2) == ["k1", "k2", "k3", "k4"]
        assert held(one) == []

    def test_they_wait_again_when_it_fails_and_go_on_when_it_dies(self, one: Connection) -> None:
        configure(one, "max_retries", "2")
        publish_keyed(one, ("k", "k1"), ("k", "k2"))
        fail(one, "k1", HOUR)
        make_due(one)
        fail(one, "k1", HOUR)
        assert page_of(one) == []
        assert held(one) == [("k1", 2), ("k2", 0)]
        make_due(one)
        fail(one, "k1")
        assert page_acked(one) == ["k2"]
        assert rows(one, "select ev_data, ev_retry, dl_reason from pgque.dead_letter") == [
            ("k1", 2, "max retries exceeded")
        ]
        assert (page_of(one), held(one)) == ([], [])

    def test_events_behind_dead_letters_of_a_page_come_again(self, one: Connection) -> None:
        configure(one, "max_retries", "0")
        publish_keyed(one, ("k", "k1"), ("l", "l1"), ("k", "k2"), ("k", "k3"), ("k", "k4"))
        fail(one, "k1")
        assert held(one) == [("k2", 0), ("k3", 0), ("k4", 0)]
        fail(one, "k2")
        assert drain_slot(one, 0, 1) == ["k3", "k4"]
        assert held(one) == []

    def test_what_waits_longer_than_a_dead_letter_still_waits(self, one: Connection) -> None:
        configure(one, "max_retries", "1")
        value(one, "select nextval('pgque.event_1_id_seq')")
        publish_keyed(one, ("k", "k2"), ("k", "k3"))
        fail(one, "k2", HOUR)
        send_older(one)
        fail(one, "k1")
        fail(one, "k1")
        assert (page_of(one), held(one)) == ([], [("k2", 1), ("k3", 0)])

    def test_a_later_event_of_the_page_can_fail_alone(self, one: Connection) -> None:
        publish_keyed(one, ("k", "k1"), ("k", "k2"), ("k", "k3"))
        fail(one, "k2", HOUR)
        assert held(one) == [("k2", 1), ("k3", 0)]

    def test_a_nack_of_a_waiting_event_costs_it_no_retry(self, one: Connection) -> None:
        first, second = publish_keyed(one, ("k", "k1"), ("k", "k2"))
        page_of(one)
        assert nack(one, first, 0, 1, after=HOUR) == 1
        assert nack(one, second, 0, 1) == 1
        assert nack(one, first, 0, 1) == 1
        ack(one, 0, 1)
        assert held(one) == [("k1", 1), ("k2", 0)]
        make_due(one)
        page_of(one)
        nack(one, first, 0, 1, after=HOUR)
        nack(one, second, 0, 1)
        ack(one, 0, 1)
        assert held(one) == [("k1", 2), ("k2", 0)]

    @pytest.mark.parametrize("retries", ["0", "5"])
    def test_events_without_a_key_wait_for_none(self, one: Connection, retries: str) -> None:
        configure(one, "max_retries", retries)
        publish_keyed(one, (None, "a"), (None, "b"))
        fail(one, "a", HOUR)
        publish_keyed(one, (None, "c"))
        assert (page_of(one), held(one)) == (["c"], [])

    def test_an_event_of_a_page_of_held_ones_fails_by_its_id(self, one: Connection) -> None:
        publish_keyed(one, ("k", "k1"), ("l", "l1"))
        for payload in ("k1", "l1"):
            (message,) = [each[0] for each in receive(one, 0, 1) if each[3] == payload]
            nack(one, message, 0, 1, after=HOUR)
        ack(one, 0, 1)
        make_due(one)
        assert page_of(one) == ["k1", "l1"]
        with refused("PQ009"):
            nack(one, 999, 0, 1)
        assert nack(one, message, 0, 1, after=HOUR) == 1
        ack(one, 0, 1)
        assert held(one) == [("l1", 2)]

    def test_who_takes_over_after_a_nack_does_not_get_ahead(self, one: Connection) -> None:
        first, *_ = publish_keyed(one, ("k", "k1"), ("l", "l1"), ("k", "k2"))
        page_of(one)
        nack(one, first, 0, 1, after=HOUR)
        release(one)
        claim(one)
        assert page_acked(one) == ["l1"]
        make_due(one)
        assert page_acked(one) == ["k1", "k2"]

    def test_small_pages_of_a_failed_key_lose_nothing(self, one: Connection) -> None:
        publish_keyed(one, *(("k", f"k{number}") for number in range(7)), ("l", "l"))
        ((first, *_),) = receive(one, 0, 1, most=1)
        nack(one, first, 0, 1, after=HOUR)
        ack(one, 0, 1)
        assert drain_slot(one, 0, 1, most=1) == ["l"]
        make_due(one)
        assert page_of(one, 1) == ["k0"]
        assert [ack(one, 0, 1) for _ in range(2)] == [1, 0]
        assert drain_slot(one, 0, 1, most=3) == [f"k{number}" for number in range(1, 7)]

    def test_back_to_skip_what_waits_still_comes(self, one: Connection) -> None:
        publish_keyed(one, ("k", "k1"), ("k", "k2"))
        fail(one, "k1", HOUR)
        value(one, "select pgque.set_partition_policy('q', 'c', 'skip')")
        make_due(one)
        assert drain_slot(one, 0, 1) == ["k1", "k2"]

    def test_held_events_come_in_time_whatever_their_keys_length(self, one: Connection) -> None:
        key = "k" * 100_000
        publish_keyed(one, (key, "a"), (key, "b"))
        fail(one, "a", "0.2 seconds")
        assert page_of(one) == []
        one.execute("select pg_sleep(0.2)")
        assert drain_slot(one, 0, 1) == ["a", "b"]

    def test_an_event_that_expires_lets_the_others_go_on(self, one: Connection) -> None:
        configure(one, "event_ttl", "1 hour")
        publish_keyed(one, ("k", "k1"), ("k", "k2"))
        fail(one, "k1", HOUR)
        one.execute(
            "update pgque.partition_held set ev_time = ev_time - interval '2 hours'"
            " where ev_data = 'k1'"
        )
        assert drain_slot(one, 0, 1) == ["k2"]
        assert held(one) == []

    def test_events_sent_later_with_a_lower_id_come_too(self, one: Connection) -> None:
        """Two transactions of one key at once have no order, but both arrive."""
        value(one, "select nextval('pgque.event_1_id_seq')")
        send_keyed(one, ("k", "k2"))
        tick(one)
        fail(one, "k2", HOUR)
        send_older(one)
        assert drain_slot(one, 0, 1) == ["k1"]
        make_due(one)
        assert drain_slot(one, 0, 1) == ["k2"]
