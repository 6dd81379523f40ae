"""What slots of a partitioned consumer refuse."""

from typing import Any

import pytest

from tests.support.queues import Connection, make_queue, refused, value
from tests.support.slots import (
    ack,
    claim,
    expire,
    left_over,
    nack,
    publish_and_receive,
    publish_keyed,
    queue_with_slots,
    receive,
    slot_of,
    subscribe,
    texts,
)


@pytest.mark.parametrize(("slot", "n"), [(2, 2), (-1, 2), (0, 0), (0, 257), (None, 2), (0, None)])
def test_impossible_slots_are_refused(db: Connection, slot: int | None, n: int | None) -> None:
    make_queue(db, consumers=())
    with refused("PQ005", "cannot have a slot", "1 to 256 slots"):
        subscribe(db, slot, n)
    assert left_over(db) == {}


CALLS = [
    "claim_slot({}, 'w')",
    "release_slot({}, 'w')",
    "receive_partitioned({}, 2, 'w')",
    "ack_partitioned({}, 2, 'w')",
    "nack_partitioned({}, 2, 'w', null)",
]


@pytest.mark.parametrize(
    "call", [*CALLS, "subscribe_slot({}, 2)", "set_partition_policy('none', 'c', 'skip')"]
)
def test_an_unknown_queue_is_named(db: Connection, call: str) -> None:
    with refused("PQ001", 'queue "none" does not exist'):
        db.execute(f"select pgque.{call}".format("'none', 'c', 1").encode())


@pytest.mark.parametrize("call", CALLS)
def test_a_slot_that_is_only_reserved_cannot_be_used(db: Connection, call: str) -> None:
    make_queue(db, consumers=())
    subscribe(db, 0, 2)
    with refused("PQ002", 'slot 1 of consumer "c" is not subscribed', "subscribe_slot"):
        db.execute(f"select pgque.{call}".format("'q', 'c', 1").encode())


@pytest.mark.parametrize("n", [3, None])
def test_a_wrong_number_of_slots_is_refused(db: Connection, n: Any) -> None:
    queue_with_slots(db, 2)
    for call in (
        lambda: receive(db, 0, n),
        lambda: ack(db, 0, n),
        lambda: nack(db, 1, 0, n),
    ):
        with refused("PQ005", "has 2 slots, not"):
            call()


def test_arguments_that_make_no_sense_are_refused(db: Connection) -> None:
    queue_with_slots(db, 1)
    ((message, *_),) = publish_and_receive(db)
    for consumer in ("", None):
        with refused("PQ005", "Name the consumer"):
            value(db, "select pgque.subscribe_slot('q', %s, 0, 2)", consumer)
    for ttl in ("0", "-1 second", None, "2 days"):
        with refused("PQ005", "no lease for worker"):
            claim(db, worker="other", ttl=ttl)  # type: ignore[arg-type]
    for worker in ("", None):
        with refused("PQ005", "Name the worker"):
            claim(db, worker=worker)  # type: ignore[arg-type]
    for most in (0, -1, None):
        with refused("PQ005", "no page has"):
            receive(db, 0, 1, most=most)
    for after in ("-1 second", None):
        with refused("PQ005", "no retry after"):
            nack(db, message, 0, 1, after=after)
    for policy in ("wait", "", None):
        with refused("PQ005", "there is no policy", "skip"):
            value(db, "select pgque.set_partition_policy('q', 'c', %s)", policy)


def test_only_events_of_the_page_can_be_nacked(db: Connection) -> None:
    queue_with_slots(db, 2)
    key_of = {slot_of(db, key, 2): key for key in "abcdefgh"}
    foreign, own, later = publish_keyed(db, (key_of[1], "x"), (key_of[0], "y"), (key_of[0], "z"))
    receive(db, 0, most=1)
    for message in (foreign, later, 999, None):
        with refused("PQ009", "is not in the page that slot 0"):
            nack(db, message)
    assert nack(db, own) == 1
    ack(db)
    with refused("PQ009"):
        nack(db, own)


@pytest.mark.parametrize("name", ["c#0/2", "c#2/3", "c#7/3", "c"])
def test_a_name_that_is_no_slot_now_leads_to_the_slots(db: Connection, name: str) -> None:
    queue_with_slots(db, 2)
    value(db, "select pgque.repartition('q', 'c', 3)")
    value(db, "select pgque.unsubscribe_slot('q', 'c', 2)")
    with refused(
        "PQ002",
        'consumer "c" on queue "q" has 3 slots now',
        "from c#0/3 to c#2/3",
        "select pgque.subscribe_slots('q', 'c', 3);",
    ):
        db.execute("select * from pgque.claim_batch('q', %s, 'run')", [name])


def test_another_consumer_or_queue_is_not_taken_for_a_slots(db: Connection) -> None:
    queue_with_slots(db, 1)
    make_queue(db, "other", consumers=("c2",))
    for queue, consumer in (("q", "d"), ("other", "c")):
        with refused("PQ002", f'consumer "{consumer}" is not registered', "register_consumer"):
            db.execute("select * from pgque.claim_batch(%s, %s, 'run')", [queue, consumer])
    with refused("PQ002", 'consumer "c2" has no slots on queue "other"'):
        value(db, "select pgque.set_partition_policy('other', 'c2', 'pause')")


def test_a_slot_is_no_plain_consumer(db: Connection) -> None:
    queue_with_slots(db, 1)
    for call in (
        "next_batch('q', 'c#0/1')",
        "next_batch_custom('q', 'c#0/1', null, null, null)",
        "receive('q', 'c#0/1')",
        "register_subconsumer('q', 'c#0/1', 'sub', true)",
        "register_consumer_at('q', 'c#0/1', 1)",
        "unregister_consumer('q', 'c#0/1')",
        "unsubscribe('q', 'c#0/1')",
    ):
        with refused("PQ015", 'consumer "c#0/1" on queue "q" is a slot of a partitioned one'):
            db.execute(f"select pgque.{call}".encode())


def test_the_batch_of_a_slot_is_not_settled_past_its_lease(db: Connection) -> None:
    queue_with_slots(db, 1)
    ((message, batch, *_),) = publish_and_receive(db)
    expire(db)
    for call in (
        f"ack({batch})",
        f"finish_batch({batch})",
        f"ack_batch({batch}, 'w', 1)",
        f"renew_batch({batch}, 'w', 1)",
        f"release_batch({batch}, 'w', 1)",
        f"nack({batch}, row({message},{batch},'','',0,now(),'','','','')::pgque.message)",
    ):
        with refused("PQ015", "is a slot of a partitioned one"):
            db.execute(f"select pgque.{call}".encode())
    assert texts(receive(db, 0, 1)) == ["a"]
