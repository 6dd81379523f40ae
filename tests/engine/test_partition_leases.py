"""Who holds a slot of a partitioned consumer, its pages, and what is refused to whom."""

import pytest

from tests.support.queues.races import race
from tests.support.queues.slots import (
    ack,
    claim,
    drain_slot,
    expire,
    left_over,
    nack,
    publish_and_receive,
    publish_keyed,
    queue_with_slots,
    receive,
    release,
    slot_of,
    statuses,
    subscribe,
    texts,
)
from tests.support.queues.sql import Connection, refused


@pytest.fixture
def one(db: Connection) -> Connection:
    """A queue whose consumer c has one slot, which w holds under epoch 1."""
    queue_with_slots(db, 1)
    return db


def test_slots_are_numbered_as_documented(db: Connection) -> None:
    """These numbers must never change: positions in the middle of a queue rest on them."""
    numbers = {"a": 1, "b": 0, "order-1": 3, "ü": 4, "": 5}
    queue_with_slots(db, 8)
    publish_keyed(db, *((key, key) for key in numbers))
    found = {text: slot for slot in range(8) for text in drain_slot(db, slot, 8)}
    assert found == numbers
    assert {key: slot_of(db, key, 8) for key in numbers} == numbers


def test_an_ack_covers_what_the_last_receive_returned(one: Connection) -> None:
    def page(most: int = 100) -> list[str]:
        return texts(receive(one, 0, 1, most=most))

    publish_keyed(one, ("k", "a"), ("k", "b"), ("k", "c"))
    assert ack(one, 0, 1) == 0
    with one.transaction(force_rollback=True):
        page()
        ack(one, 0, 1)
    assert page() == page() == ["a", "b", "c"]
    assert page(1) == ["a"]
    assert [ack(one, 0, 1), ack(one, 0, 1)] == [1, 0]
    assert page() == ["b", "c"]


def test_later_events_of_a_failed_key_go_on_and_one_without_retries_left_is_dead(
    one: Connection,
) -> None:
    a, _ = publish_keyed(one, ("k", "a"), ("k", "b"))
    receive(one, 0, 1)
    nack(one, a, 0, 1, after="1 hour")
    ack(one, 0, 1)
    (c,) = publish_keyed(one, ("k", "c"))
    one.value("select pgque.set_queue_config('q', 'max_retries', '0')")
    assert texts(receive(one, 0, 1)) == ["c"]
    assert one.value("select ev_data from pgque.retry_queue") == "a"
    assert (nack(one, c, 0, 1), ack(one, 0, 1)) == (1, 1)
    assert one.rows("select consumer_name from pgque.dlq_summary('q')") == [("c#0/1",)]


def test_a_claim_is_renewed_under_its_epoch_and_others_get_none(one: Connection) -> None:
    ((first,),) = statuses(one, "lease_until")
    assert claim(one, worker="other") is None
    assert statuses(one, "lease_owner", "epoch", "lease_until") == [("w", 1, first)]
    assert claim(one, ttl="1 minute") == 1
    assert statuses(one, "lease_until") > [(first,)]


def test_a_lease_that_ran_out_works_until_it_goes_to_the_next_worker(one: Connection) -> None:
    publish_keyed(one, ("k", "a"))
    expire(one)
    assert drain_slot(one, 0, 1) == ["a"]
    assert claim(one, worker="other") is None
    expire(one)
    assert claim(one, worker="other") == 2
    assert claim(one) is None


def test_a_released_slot_is_free_and_its_page_comes_again(one: Connection) -> None:
    publish_keyed(one, ("k", "a"))
    receive(one, 0, 1)
    assert release(one) is True
    for worker in ("w", None):
        with refused("PQ012", "it has no lease"):
            receive(one, 0, 1, worker)
    assert claim(one, worker="other") == 2
    assert ack(one, 0, 1, "other") == 0
    assert texts(receive(one, 0, 1, "other")) == ["a"]


def test_only_its_holder_releases_a_slot(one: Connection) -> None:
    assert [release(one, worker=worker) for worker in ("other", None)] == [False, False]
    assert statuses(one, "lease_owner") == [("w",)]
    assert [release(one, worker=worker) for worker in ("w", "other", None)] == [True, False, False]


def test_the_one_that_lost_the_lease_is_refused_and_the_heir_begins_again(one: Connection) -> None:
    ((message, *_),) = publish_and_receive(one)
    expire(one)
    claim(one, worker="heir")
    for call in (
        lambda: receive(one, 0, 1),
        lambda: ack(one, 0, 1),
        lambda: nack(one, message, 0, 1),
    ):
        with refused("PQ012", "is not leased by", '"heir" has its lease under epoch 2'):
            call()
    assert one.rows("select * from pgque.retry_queue") == []
    assert ack(one, 0, 1, "heir") == 0
    assert texts(receive(one, 0, 1, "heir")) == ["a"]
    assert ack(one, 0, 1, "heir") == 1


@pytest.mark.parametrize(("undone", "epoch"), [(False, None), (True, 2)])
def test_of_two_claims_at_once_one_wins(one: Connection, undone: bool, epoch: int | None) -> None:
    release(one)
    _, answer = race(one, claim, lambda two: claim(two, 0, "other"), rollback=undone)
    assert answer.result() == epoch


def test_an_ack_waits_for_a_take_over_and_is_refused(one: Connection) -> None:
    publish_and_receive(one)
    expire(one)
    with one.transaction():
        claim(one, worker="heir")
        answer = one.blocked(ack, 0, 1)
    with refused("PQ012", '"heir" has its lease'):
        answer.result()


def test_idle_workers_write_only_to_keep_their_lease(one: Connection) -> None:
    written = "select max(pos_seq) from pgque.position_log"
    receive(one, 0, 1)
    before = one.value(written)
    for _ in range(5):
        assert receive(one, 0, 1) == []
    assert one.value(written) == before
    claim(one, ttl="0.2 seconds")
    one.execute("select pg_sleep(0.15)")
    receive(one, 0, 1)
    assert one.value(written) == before + 2


def test_slots_survive_a_compaction(one: Connection) -> None:
    publish_keyed(one, ("k", "a"), ("k", "b"))
    receive(one, 0, 1, most=1)
    ack(one, 0, 1)
    receive(one, 0, 1, most=1)
    assert one.compact_positions() > 0
    one.compact_ticks()
    assert ack(one, 0, 1) == 1
    assert drain_slot(one, 0, 1) == []
    assert statuses(one, "lease_owner", "epoch") == [("w", 1)]


def test_impossible_slots_are_refused(bare: Connection) -> None:
    for slot, n in ((2, 2), (-1, 2), (0, 0), (0, 257), (None, 2), (0, None)):
        with refused("PQ005", "cannot have a slot", "1 to 256 slots"):
            subscribe(bare, slot, n)
    for number in (0, 257, None):
        with refused("PQ005", "1 to 256 slots"):
            bare.value("select pgque.subscribe_slots('q', 'c', %s::integer)", number)
    assert left_over(bare) == {}


def test_a_slot_that_is_only_reserved_cannot_be_used(bare: Connection) -> None:
    subscribe(bare, 0, 2)
    for call in (
        "claim_slot('q', 'c', 1, 'w')",
        "release_slot('q', 'c', 1, 'w')",
        "receive_partitioned('q', 'c', 1, 2, 'w')",
        "ack_partitioned('q', 'c', 1, 2, 'w')",
        "nack_partitioned('q', 'c', 1, 2, 'w', null)",
    ):
        with refused("PQ002", 'slot 1 of consumer "c" is not subscribed', "subscribe_slot"):
            bare.value(f"select pgque.{call}")


def test_a_wrong_number_of_slots_is_refused(db: Connection) -> None:
    queue_with_slots(db, 2)
    for call in ("receive_partitioned", "ack_partitioned", "nack_partitioned"):
        message = ", null" if call == "nack_partitioned" else ""
        for n in (3, None):
            with refused("PQ005", "has 2 slots, not"):
                db.value(f"select pgque.{call}('q', 'c', 0, %s, 'w'{message})", n)


def test_arguments_that_make_no_sense_are_refused(db: Connection) -> None:
    queue_with_slots(db, 1)
    ((message, *_),) = publish_and_receive(db)
    for consumer in ("", "a#b", None):
        with refused("PQ005", "Name the consumer"):
            db.value("select pgque.subscribe_slot('q', %s, 0, 2)", consumer)
    with refused("PQ005", "# is for the slots"):
        db.value("select pgque.subscribe('q', 'a#b')")
    for ttl in ("0", "-1 second", None):
        with refused("PQ005", "cannot have a lease"):
            claim(db, worker="other", ttl=ttl)  # type: ignore[arg-type]
    for worker in ("", None):
        with refused("PQ005", "Name the owner"):
            claim(db, worker=worker)  # type: ignore[arg-type]
    for most in (0, -1, None):
        with refused("PQ005", "a page cannot have"):
            receive(db, 0, 1, most=most)
    for after in ("-1 second", None):
        with refused("PQ005", "a retry cannot wait"):
            nack(db, message, 0, 1, after=after)
    db.value("select pgque.set_partition_policy('q', 'c', 'skip')")
    with refused("PQ005", 'unknown policy for failed events: "pause"', "release the slot"):
        db.value("select pgque.set_partition_policy('q', 'c', 'pause')")


def test_only_events_of_the_page_can_be_nacked(db: Connection) -> None:
    queue_with_slots(db, 2)
    key_of = {slot_of(db, key, 2): key for key in "abcdefgh"}
    foreign, own, later = publish_keyed(db, (key_of[1], "x"), (key_of[0], "y"), (key_of[0], "z"))
    receive(db, 0, most=1)
    for message in (later, 999, None):
        with refused("PQ009", "is not in the page that slot 0"):
            nack(db, message)
    with refused("PQ009", f"has no event {foreign}"):
        nack(db, foreign)
    assert nack(db, own) == 1
    ack(db)
    with refused("PQ009"):
        nack(db, own)


def test_a_name_that_is_no_slot_now_leads_to_the_slots(db: Connection) -> None:
    queue_with_slots(db, 2)
    db.value("select pgque.repartition('q', 'c', 3)")
    db.value("select pgque.unsubscribe_slot('q', 'c', 2)")
    call = "select pgque.subscribe_slots('q', 'c', 3);"
    for name in ("c#0/2", "c#2/3", "c#7/3", "c"):
        with refused("PQ002", 'where "c" has 3 slots now', "from c#0/3 to c#2/3", call):
            db.execute("select * from pgque.claim_batch('q', %s, 'run')", [name])


def test_another_consumer_or_queue_is_not_taken_for_a_slots(db: Connection) -> None:
    queue_with_slots(db, 1)
    db.make_queue("other", consumers=("c2",))
    for queue, consumer in (("q", "d"), ("other", "c")):
        with refused("PQ002", f'consumer "{consumer}" is not registered', "register_consumer"):
            db.execute("select * from pgque.claim_batch(%s, %s, 'run')", [queue, consumer])
    with refused("PQ002", 'consumer "c2" has no slots on queue "other"'):
        db.value("select pgque.repartition('other', 'c2', 2)")


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
    db.make_queue("elsewhere")
    queue_with_slots(db, 1)
    ((message, batch, *_),) = publish_and_receive(db)
    expire(db)
    for call in (
        f"ack({batch})",
        f"finish_batch({batch})",
        f"ack_batch({batch}, 'w', 1)",
        f"renew_batch({batch}, 'w', 1)",
        f"release_batch({batch}, 'w', 1)",
        f"hold_batch({batch}, 1, 'why')",
        f"set_events_aside({batch}, array[{message}], 'bad')",
        f"nack({batch}, row({message},{batch},'','',0,now(),'','','','')::pgque.message)",
    ):
        with refused("PQ015", 'consumer "c#0/1" on queue "q" is a slot of a partitioned one'):
            db.execute(f"select pgque.{call}".encode())
    assert texts(receive(db, 0, 1)) == ["a"]
