"""Slots of a partitioned consumer by the client: claimed, read, judged, acked, given up."""

from datetime import timedelta

import pytest

from pgque_dagster.client import (
    ConsumerNotFound,
    EventNotInBatch,
    InvalidArgument,
    LeaseLost,
    PartitionedConsumer,
    QueueNotFound,
    Slot,
)
from tests.client.consumer.support import Queue
from tests.support.queues import value
from tests.support.slots import expire, publish_keyed, slot_of, statuses

NOW = timedelta(0)


@pytest.fixture
def consumer(q: Queue) -> PartitionedConsumer:
    """A consumer of two slots, both subscribed."""
    q.client.unregister_consumer("q", "c")
    consumer = PartitionedConsumer(q.client, "q", "c", slots=2)
    for number in range(2):
        consumer.subscribe(number)
    return consumer


@pytest.fixture
def slot(consumer: PartitionedConsumer) -> Slot:
    """The first, held by w. Events without a key are in it."""
    return claimed(consumer)


def claimed(consumer: PartitionedConsumer, number: int = 0, worker: str = "w") -> Slot:
    slot = consumer.claim(number, worker=worker)
    assert slot is not None
    return slot


def payloads(slot: Slot, limit: int = 100) -> list[str | None]:
    return [message.payload for message in slot.receive(limit)]


def test_each_slot_gets_the_events_of_its_keys_in_order(
    q: Queue, consumer: PartitionedConsumer
) -> None:
    keys = [f"key {number}" for number in range(10)] * 2
    for key in keys:
        q.client.send("q", "x", type="paid", partition_key=key)
    q.tick()
    received = [claimed(consumer, number).receive() for number in range(2)]
    assert sum(map(len, received)) == len(keys)
    for number, messages in enumerate(received):
        assert {slot_of(q.db, message.extra1, 2) for message in messages} == {number}
        assert {(message.type, message.payload) for message in messages} == {("paid", "x")}
        assert messages == sorted(messages, key=lambda message: message.msg_id)


def test_a_page_comes_again_until_it_is_acked(q: Queue, slot: Slot) -> None:
    assert slot.receive() == []
    assert slot.ack() is False
    publish_keyed(q.db, (None, "a"), (None, "b"))
    assert payloads(slot, limit=1) == payloads(slot, limit=1) == ["a"]
    with pytest.raises(ZeroDivisionError), q.client.transaction():
        slot.ack()
        _ = 1 / 0
    assert payloads(slot, limit=1) == ["a"]
    assert slot.ack() is True
    assert payloads(slot, limit=1) == ["b"]


def test_a_lease_belongs_to_one_worker_until_it_is_given_up_or_lost(
    q: Queue, consumer: PartitionedConsumer, slot: Slot
) -> None:
    (message_id,) = publish_keyed(q.db, (None, "a"))
    slot.receive()
    assert consumer.claim(0, worker="other") is None
    assert slot.release() is True
    slot = claimed(consumer, worker="other")
    assert payloads(slot) == ["a"]
    expire(q.db)
    heir = claimed(consumer, worker="heir")
    for call in (slot.receive, slot.ack, lambda: slot.nack(message_id)):
        with pytest.raises(LeaseLost, match="heir"):
            call()
    assert slot.release() is False
    assert heir.epoch > slot.epoch
    assert payloads(heir) == ["a"]
    consumer.claim(1, worker="w", ttl=timedelta(hours=3))
    ((left,),) = statuses(q.db, "lease_until - clock_timestamp()")[1:]
    assert timedelta(hours=2) < left <= timedelta(hours=3)


def test_behind_a_failed_event_its_key_goes_on(q: Queue, consumer: PartitionedConsumer) -> None:
    slot = claimed(consumer, slot_of(q.db, "k", 2))
    publish_keyed(q.db, ("k", "1"), ("k", "2"))
    failed, _ = slot.receive()
    slot.nack(failed.msg_id, retry_after=NOW, reason="mail server down")
    slot.ack()
    assert payloads(slot) == []


def test_a_failed_event_comes_again_after_the_time_that_was_given_or_is_a_dead_letter(
    q: Queue, slot: Slot
) -> None:
    with pytest.raises(EventNotInBatch, match="4711"):
        slot.nack(4711)
    publish_keyed(q.db, (None, "soon"), (None, "later"))
    soon, later = slot.receive()
    slot.nack(soon.msg_id, retry_after=NOW)
    slot.nack(later.msg_id, retry_after=timedelta(hours=1))
    slot.ack()
    q.client.maint()
    q.tick()
    (again,) = slot.receive()
    assert (again.payload, again.retry_count) == ("soon", 1)
    q.client.configure_queue("q", max_retries="1")
    slot.nack(again.msg_id, reason="mail server down")
    (letter,) = q.client.dead_letters("q")
    assert (letter.payload, letter.reason) == ("soon", "mail server down")


def test_wrong_use_is_refused(q: Queue, consumer: PartitionedConsumer, slot: Slot) -> None:
    other = PartitionedConsumer(q.client, "q", "c", slots=3)
    with pytest.raises(InvalidArgument, match="has 2 slots, not 3"):
        other.subscribe(2)
    with pytest.raises(InvalidArgument, match="has 2 slots, not 3"):
        claimed(other, 1).receive()
    with pytest.raises(QueueNotFound, match="nosuch"):
        PartitionedConsumer(q.client, "nosuch", "c", slots=1).subscribe(0)
    consumer.unsubscribe(0)
    with pytest.raises(ConsumerNotFound, match='slot 0 of consumer "c" is not subscribed'):
        slot.receive()
    consumer.unsubscribe(1)
    assert value(q.db, "select count(*) from pgque.partition_consumer") == 0


def test_another_number_of_slots_keeps_what_is_not_acked(
    q: Queue, consumer: PartitionedConsumer
) -> None:
    keys = [f"key {number}" for number in range(10)]
    publish_keyed(q.db, *((key, key) for key in keys))
    first, old = claimed(consumer, 0), claimed(consumer, 1)
    acked = payloads(old)
    old.ack()
    assert (consumer.repartition(3), consumer.slots) == (1, 2)
    publish_keyed(q.db, *((key, f"{key}, later") for key in keys))
    assert payloads(old) == []
    acked += payloads(first)
    first.ack()
    assert (consumer.repartition(3), consumer.slots) == (0, 3)
    assert sorted(acked) == sorted(keys)
    found = [text for number in range(3) for text in payloads(claimed(consumer, number))]
    assert sorted(map(str, found)) == sorted(f"{key}, later" for key in keys)
    with pytest.raises(InvalidArgument, match="3 slots, not 2"):
        old.receive()
