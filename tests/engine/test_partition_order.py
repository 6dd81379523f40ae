"""What a slot delivers: each event once to one slot, each key in order, whatever fails."""

from collections import Counter

import pytest

from tests.support.queues import Connection
from tests.support.slots import (
    ack,
    drain_slot,
    nack,
    publish_keyed,
    queue_with_slots,
    receive,
    slot_of,
    statuses,
    texts,
)

HOUR = "1 hour"


@pytest.fixture
def one(db: Connection) -> Connection:
    """A queue whose consumer has one slot."""
    queue_with_slots(db, 1)
    return db


def configure(db: Connection, parameter: str, setting: str) -> None:
    db.value("select pgque.set_queue_config('q', %s, %s)", parameter, setting)


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


def send_older(db: Connection) -> None:
    """An event of the key k with id 1, in a tick of its own."""
    db.execute(
        "select pgque.insert_event_raw('q', 1, now(), null, null, 't', 'k1', 'k', null, null, null)"
    )
    db.tick()


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
        db.send("a", "b")
        for _ in range(3):
            db.tick()
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


class TestFailures:
    def test_later_events_of_a_failed_key_go_on(self, db: Connection) -> None:
        queue_with_slots(db, 1)
        publish_keyed(db, ("k", "a"), ("k", "b"))
        fail(db, "a", HOUR)
        publish_keyed(db, ("k", "c"))
        assert page_acked(db) == ["c"]
        assert db.value("select ev_data from pgque.retry_queue") == "a"

    def test_a_failed_event_comes_again_to_its_slot_only(self, db: Connection) -> None:
        queue_with_slots(db, 3)
        slot = slot_of(db, "k", 3)
        (message,) = publish_keyed(db, ("k", "a"))
        receive(db, slot, 3)
        nack(db, message, slot, 3)
        ack(db, slot, 3)
        db.value("select pgque.maint_retry_events()")
        db.tick()
        found = {number: receive(db, number, 3) for number in range(3)}
        assert {number: texts(page) for number, page in found.items() if page} == {slot: ["a"]}
        assert found[slot][0][4] == 1

    def test_without_retries_left_it_is_a_dead_letter(self, db: Connection) -> None:
        queue_with_slots(db, 1, max_retries="0")
        (message,) = publish_keyed(db, ("k", "a"))
        assert (page_of(db), nack(db, message, 0, 1)) == (["a"], 1)
        assert page_acked(db) == ["a"]
        assert db.rows("select consumer_name from pgque.dlq_summary('q')") == [("c#0/1",)]


class TestLateEvents:
    def test_events_sent_later_with_a_lower_id_come_too(self, one: Connection) -> None:
        """Two transactions of one key at once have no order, but both arrive."""
        one.value("select nextval('pgque.event_1_id_seq')")
        publish_keyed(one, ("k", "k2"), ("k", "k3"))
        assert [page_acked(one, most=1), page_acked(one)] == [["k2"], ["k3"]]
        send_older(one)
        assert page_acked(one) == ["k1"]
