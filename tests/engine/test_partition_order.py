"""What a slot delivers: each event once to one slot, each key in order, whatever fails."""

import pytest

from tests.support.queues.slots import (
    ack,
    drain_slot,
    nack,
    publish_keyed,
    queue_with_slots,
    receive,
    slot_of,
    texts,
)
from tests.support.queues.sql import Connection

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


class TestSharing:
    def test_slots_are_numbered_as_documented(self, db: Connection) -> None:
        """These numbers must never change: positions in the middle of a queue rest on them."""
        numbers = {"a": 1, "b": 0, "order-1": 3, "ü": 4, "": 5}
        queue_with_slots(db, 8)
        publish_keyed(db, *((key, key) for key in numbers))
        found = {text: slot for slot in range(8) for text in drain_slot(db, slot, 8)}
        assert found == numbers
        assert {key: slot_of(db, key, 8) for key in numbers} == numbers


class TestPages:
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

    def test_without_retries_left_it_is_a_dead_letter(self, db: Connection) -> None:
        queue_with_slots(db, 1, max_retries="0")
        (message,) = publish_keyed(db, ("k", "a"))
        assert (page_of(db), nack(db, message, 0, 1)) == (["a"], 1)
        assert page_acked(db) == ["a"]
        assert db.rows("select consumer_name from pgque.dlq_summary('q')") == [("c#0/1",)]
