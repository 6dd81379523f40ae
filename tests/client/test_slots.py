"""Slots of a partitioned consumer by the client: claimed, read, judged, acked, given up."""

from datetime import timedelta
from typing import Any

import pytest

from pgque_dagster.client import (
    Client,
    ConsumerNotFound,
    EventNotInBatch,
    InvalidArgument,
    LeaseLost,
    PartitionedConsumer,
    QueueNotFound,
    Slot,
)
from tests.support.queues import Connection, make_queue, tick, value
from tests.support.slots import expire, publish_keyed, slot_of, statuses

NOW = timedelta(0)


@pytest.fixture
def consumer(client: Client, db: Connection) -> PartitionedConsumer:
    """One of two slots, both subscribed."""
    make_queue(db, consumers=())
    consumer = PartitionedConsumer(client, "q", "c", slots=2)
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
    consumer: PartitionedConsumer, db: Connection
) -> None:
    keys = [f"key {number}" for number in range(10)] * 2
    publish_keyed(db, *((key, f"{key}, event {number}") for number, key in enumerate(keys)))

    received = [claimed(consumer, number).receive() for number in range(2)]

    assert all(slot_of(db, message.extra1, 2) == 0 for message in received[0])
    assert all(slot_of(db, message.extra1, 2) == 1 for message in received[1])
    assert sum(map(len, received)) == len(keys)
    for messages in received:
        assert messages == sorted(messages, key=lambda message: message.msg_id)


def test_events_sent_under_a_key_by_the_client_are_in_the_slot_of_the_key(
    consumer: PartitionedConsumer, client: Client, db: Connection
) -> None:
    client.send("q", "x", type="paid", partition_key="k")
    tick(db)

    (message,) = claimed(consumer, slot_of(db, "k", 2)).receive()

    assert (message.type, message.payload, message.extra1) == ("paid", "x", "k")


def test_a_page_comes_again_until_it_is_acked(slot: Slot, db: Connection) -> None:
    publish_keyed(db, (None, "a"), (None, "b"))

    assert payloads(slot, limit=1) == payloads(slot, limit=1) == ["a"]
    assert slot.ack() is True
    assert payloads(slot, limit=1) == ["b"]


def test_an_ack_of_nothing_says_so(slot: Slot) -> None:
    assert slot.receive() == []
    assert slot.ack() is False


def test_results_and_ack_stand_or_fall_together(slot: Slot, client: Client, db: Connection) -> None:
    publish_keyed(db, (None, "a"))
    slot.receive()

    with pytest.raises(ZeroDivisionError), client.transaction():
        slot.ack()
        _ = 1 / 0

    assert payloads(slot) == ["a"]


def test_a_slot_that_another_worker_holds_is_not_to_be_had(
    consumer: PartitionedConsumer, slot: Slot
) -> None:
    assert consumer.claim(0, worker="other") is None


def test_a_lease_lasts_as_long_as_it_was_asked_for(
    consumer: PartitionedConsumer, db: Connection
) -> None:
    consumer.claim(1, worker="w", ttl=timedelta(hours=3))

    ((left,),) = statuses(db, "lease_until - clock_timestamp()")[1:]
    assert timedelta(hours=2) < left <= timedelta(hours=3)


def test_whoever_lost_the_lease_is_refused(
    consumer: PartitionedConsumer, slot: Slot, db: Connection
) -> None:
    (message_id,) = publish_keyed(db, (None, "a"))
    slot.receive()
    expire(db)
    heir = claimed(consumer, worker="heir")

    for call in (slot.receive, slot.ack, lambda: slot.nack(message_id)):
        with pytest.raises(LeaseLost, match="heir"):
            call()
    assert slot.release() is False
    assert heir.epoch > slot.epoch
    assert payloads(heir) == ["a"]


def test_a_released_slot_is_free_at_once(
    consumer: PartitionedConsumer, slot: Slot, db: Connection
) -> None:
    publish_keyed(db, (None, "a"))
    slot.receive()

    assert slot.release() is True
    assert payloads(claimed(consumer, worker="other")) == ["a"]


@pytest.mark.parametrize(("policy", "next_page"), [("skip", []), ("pause", ["1", "2"])])
def test_behind_a_failed_event_its_key_goes_on_or_waits(
    policy: Any, next_page: list[str], consumer: PartitionedConsumer, db: Connection
) -> None:
    consumer.set_policy(policy)
    slot = claimed(consumer, slot_of(db, "k", 2))
    publish_keyed(db, ("k", "1"), ("k", "2"))

    failed, _ = slot.receive()
    slot.nack(failed.msg_id, retry_after=NOW, reason="mail server down")
    slot.ack()

    assert payloads(slot) == next_page


def test_a_failed_event_without_retries_left_is_a_dead_letter_with_its_reason(
    slot: Slot, client: Client, db: Connection
) -> None:
    client.configure_queue("q", max_retries="0")
    publish_keyed(db, (None, "a"))

    (message,) = slot.receive()
    slot.nack(message.msg_id, reason="mail server down")

    (letter,) = client.dead_letters("q")
    assert (letter.payload, letter.reason) == ("a", "mail server down")


def test_a_failed_event_comes_again_after_the_time_that_was_given(
    slot: Slot, client: Client, db: Connection
) -> None:
    publish_keyed(db, (None, "soon"), (None, "later"))
    soon, later = slot.receive()
    slot.nack(soon.msg_id, retry_after=NOW)
    slot.nack(later.msg_id, retry_after=timedelta(hours=1))
    slot.ack()

    client.maint()
    tick(db)

    assert [(each.payload, each.retry_count) for each in slot.receive()] == [("soon", 1)]


def test_only_events_of_the_page_can_fail(slot: Slot) -> None:
    with pytest.raises(EventNotInBatch, match="4711"):
        slot.nack(4711)


def test_a_slot_that_ended_has_no_more_events(
    consumer: PartitionedConsumer, slot: Slot, db: Connection
) -> None:
    consumer.unsubscribe(0)

    with pytest.raises(ConsumerNotFound, match='slot 0 of consumer "c" is not subscribed'):
        slot.receive()
    consumer.unsubscribe(1)
    assert value(db, "select count(*) from pgque.partition_consumer") == 0


def test_another_number_of_slots_is_refused(consumer: PartitionedConsumer, client: Client) -> None:
    other = PartitionedConsumer(client, "q", "c", slots=3)

    with pytest.raises(InvalidArgument, match="has 2 slots, not 3"):
        other.subscribe(2)
    with pytest.raises(InvalidArgument, match="has 2 slots, not 3"):
        claimed(other).receive()


def test_a_policy_that_is_none_is_refused(consumer: PartitionedConsumer) -> None:
    with pytest.raises(InvalidArgument, match='no policy "wait"'):
        consumer.set_policy("wait")  # type: ignore[arg-type]


def test_slots_of_an_unknown_queue_are_refused(client: Client) -> None:
    nowhere = PartitionedConsumer(client, "nosuch", "c", slots=1)

    with pytest.raises(QueueNotFound, match="nosuch"):
        nowhere.subscribe(0)


def test_another_number_of_slots_keeps_what_is_not_acked(
    consumer: PartitionedConsumer, db: Connection
) -> None:
    keys = [f"key {number}" for number in range(10)]
    publish_keyed(db, *((key, key) for key in keys))
    old = claimed(consumer, 1)
    acked = payloads(old)
    old.ack()

    carried = consumer.repartition(3)

    found = [text for number in range(3) for text in payloads(claimed(consumer, number))]
    assert (consumer.slots, carried) == (3, len(keys) - len(acked))
    assert sorted([*acked, *found], key=str) == sorted(keys)


def test_a_slot_of_an_earlier_number_can_do_nothing_more(
    consumer: PartitionedConsumer, slot: Slot
) -> None:
    consumer.repartition(3)
    with pytest.raises(InvalidArgument, match="3 slots, not 2"):
        slot.receive()
