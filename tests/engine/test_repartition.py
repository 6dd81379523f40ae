"""Another number of slots: nothing is lost, nothing comes twice, and keys keep their order."""

import pytest

from tests.support.queues import slot_batches
from tests.support.queues.slot_batches import KEYS, in_order, keys_of, publish_round, take, taken
from tests.support.queues.slots import (
    ack,
    claim,
    consumer_with_failures,
    failures,
    nack,
    queue_with_slots,
    receive,
    send_keyed,
    slot_of,
)
from tests.support.queues.sql import Connection, refused
from tests.support.queues.workers import roles

# Consumers that could be taken for the one under test: of its queue, and of its name.
BESIDE = (("q", "other"), ("elsewhere", "c"))

SLOTS = (
    "select n, subscribed, slot, last_tick, epoch from pgque.partition_slot_status"
    " where queue_name = %s and consumer = %s order by slot"
)


def repartition(db: Connection, n: int | None) -> int:
    """How many slots have not arrived where the number changes."""
    behind: int = db.value("select pgque.repartition('q', 'c', %s::integer)", n)
    return behind


def fail_each(db: Connection) -> None:
    """Each of two slots takes a round back."""
    publish_round(db, 0)
    for slot in range(2):
        for message in receive(db, slot, 2):
            nack(db, message[0], slot, 2)
        ack(db, slot, 2)


def consume(db: Connection, n: int, most: int = 100) -> list[str]:
    """All that the slots hold, acked; each event has to come to the slot of its key."""
    found = []
    for slot in range(n):
        claim(db, slot)
        while page := receive(db, slot, n, most=most):
            assert {slot_of(db, message[6], n) for message in page} == {slot}
            found += [message[3] for message in page]
            ack(db, slot, n)
    return found


@pytest.mark.parametrize(("before", "after"), [(2, 5), (3, 1)])
def test_slots_meet_at_one_tick_and_keys_keep_their_order(
    db: Connection, before: int, after: int
) -> None:
    queue_with_slots(db, before)
    found = []
    for number in range(4):
        publish_round(db, number)
        slot = number % before
        page = receive(db, slot, before, most=2)
        found += [message[3] for message in page]
        if page:
            ack(db, slot, before)
    send_keyed(db, *((key, f"{key}: 4") for key in KEYS))  # not ticked
    assert repartition(db, after) > 0
    db.tick()
    publish_round(db, 5)
    before_the_change = consume(db, before, most=3)
    assert not [text for text in before_the_change if text.endswith((": 4", ": 5"))]
    assert repartition(db, after) == 0
    found += before_the_change + consume(db, after, most=3)
    assert in_order(found) == {key: [0, 1, 2, 3, 4, 5] for key in KEYS}


def test_what_was_asked_for_is_forgotten_or_taken_back(db: Connection) -> None:
    queue_with_slots(db, 2)
    publish_round(db, 0)
    consume_of = {slot: keys_of(db, slot) for slot in range(2)}
    assert len(receive(db, 0)) == len(consume_of[0])
    assert repartition(db, 3) == 2
    ack(db, 0)
    publish_round(db, 1)
    assert receive(db, 0) == []
    assert repartition(db, 2) == 0
    assert len(receive(db, 0)) == len(consume_of[0])
    assert repartition(db, 3) == 2
    ack(db, 0)
    publish_round(db, 2)
    assert receive(db, 0) == []
    db.execute(
        "update pgque.partition_consumer set change_asked_at = change_asked_at - interval '1 hour'"
    )
    assert len(receive(db, 0)) == len(consume_of[0])


def test_a_slot_that_nobody_has_subscribed_is_subscribed(bare: Connection) -> None:
    """Or its events would hold the change up for good."""
    bare.value("select pgque.subscribe_slot('q', 'c', 0, 2)")
    publish_round(bare, 0)
    claim(bare, 0)
    found = [message[3] for message in receive(bare, 0)]
    ack(bare, 0)
    assert repartition(bare, 3) == 1
    found += consume(bare, 2)
    assert repartition(bare, 3) == 0
    assert in_order(found) == {key: [0] for key in KEYS}


class TestWhatFailed:
    """It comes again to the new slots, and not to other consumers with as many."""

    @pytest.fixture(autouse=True)
    def others(self, bare: Connection) -> None:
        bare.make_queue("elsewhere", consumers=())
        for other in BESIDE:
            bare.value("select pgque.subscribe_slots(%s, %s, 5)", *other)

    @pytest.mark.parametrize("moved", [False, True], ids=["waiting", "already moved"])
    def test_comes_back(self, db: Connection, moved: bool) -> None:
        queue_with_slots(db, 2)
        fail_each(db)
        if moved:
            db.value("select pgque.maint_retry_events()")
        repartition(db, 5)
        db.value("select pgque.maint_retry_events()")
        db.tick()
        assert in_order(consume(db, 5)) == {key: [0] for key in KEYS}

    def test_comes_back_if_it_is_moved_while_the_slots_meet(self, db: Connection) -> None:
        queue_with_slots(db, 2)
        fail_each(db)
        with (maintenance := db.another()).transaction():
            maintenance.value("select pgque.maint_retry_events()")
            db.value("select pg_current_xact_id()::text")
            db.value("select pgque.force_next_tick('q')")
            db.value("select pgque.ticker('q')")
            assert consume(db, 2) == []
        repartition(db, 5)
        db.tick()
        assert in_order(consume(db, 5)) == {key: [0] for key in KEYS}

    def test_asks_for_a_tick_if_it_is_already_moved(self, db: Connection) -> None:
        queue_with_slots(db, 2)
        fail_each(db)
        db.value("select pgque.maint_retry_events()")
        db.execute("delete from pgque.tick_request")
        repartition(db, 5)
        assert db.rows("select queue_id from pgque.tick_request") == [(db.queue_id(),)]

    def test_is_replayed(self, db: Connection) -> None:
        queue_with_slots(db, 2, max_retries="0")
        fail_each(db)
        repartition(db, 5)
        replayed = "select replayed, failed from pgque.dlq_replay_all('q')"
        assert db.rows(replayed) == [(len(KEYS), 0)]
        db.tick()
        assert in_order(consume(db, 5)) == {key: [0] for key in KEYS}


@pytest.mark.parametrize("retries", ["5", "0"])
def test_other_consumers_keep_their_slots_and_what_failed_in_them(
    db: Connection, retries: str
) -> None:
    queue_with_slots(db, 2)
    failed = [consumer_with_failures(db, *other, n=2, max_retries=retries) for other in BESIDE]
    before = [db.rows(SLOTS, *other) for other in BESIDE]

    assert repartition(db, 5) == 0
    assert db.value("select pgque.repartition('q', 'other', 2)") == 0

    assert [failures(db, *other) for other in BESIDE] == failed
    assert [db.rows(SLOTS, *other) for other in BESIDE] == before
    assert [] not in failed + before


def test_another_consumer_reads_on_while_slots_meet(db: Connection) -> None:
    queue_with_slots(db, 2)
    publish_round(db, 0)
    receive(db, 0)
    assert repartition(db, 3) == 2
    db.value("select pgque.subscribe_slot('q', 'other', 0, 1)")
    publish_round(db, 1)
    assert db.value("select batch_id from pgque.claim_batch('q', 'other#0/1', 'run')") is not None


def test_no_page_goes_beyond_where_slots_meet(db: Connection) -> None:
    queue_with_slots(db, 2)
    publish_round(db, 0)
    receive(db, 0)
    ack(db, 0)
    assert repartition(db, 3) == 1
    publish_round(db, 1)
    assert [message[3] for message in receive(db, 1)] == [f"{key}: 0" for key in keys_of(db, 1)]


def test_of_two_changes_at_once_the_second_finds_it_done(db: Connection) -> None:
    queue_with_slots(db, 2)
    with db.transaction():
        assert repartition(db, 3) == 0
        second = db.blocked(repartition, 3)
    assert second.result() == 0


def test_an_ack_that_is_not_committed_is_waited_for(db: Connection) -> None:
    queue_with_slots(db, 1)
    publish_round(db, 0)
    with db.transaction():
        receive(db, 0, 1)
        ack(db, 0, 1)
        changing = db.blocked(repartition, 2)
    assert changing.result() == 0
    db.tick()
    assert consume(db, 2) == []


def test_a_change_that_a_worker_delays_leaves_all_workers_their_slots(db: Connection) -> None:
    queue_with_slots(db, 2)
    publish_round(db, 0)
    consume(db, 2)
    publish_round(db, 1)
    with db.transaction():
        receive(db, 1, 2)
        changing = db.blocked(repartition, 1)
    assert changing.result() == 2
    found = [message[3] for slot in range(2) for message in receive(db, slot, 2)]
    assert in_order(found) == {key: [1] for key in KEYS}


def test_a_worker_of_an_earlier_slot_can_do_nothing_more(db: Connection) -> None:
    queue_with_slots(db, 2)
    publish_round(db, 0)
    consume(db, 2)
    assert repartition(db, 1) == 0
    with refused("PQ005", "has 1 slots, not 2", "pgque.repartition"):
        ack(db, 0, 2)
    with refused("PQ002"):
        ack(db, 1, 2)
    assert repartition(db, 2) == 0
    with refused("PQ012"):
        ack(db, 0, 2)
    publish_round(db, 1)
    assert in_order(consume(db, 2)) == {key: [1] for key in KEYS}


def test_the_same_number_or_a_rolled_back_one_changes_nothing(db: Connection) -> None:
    queue_with_slots(db, 2)
    publish_round(db, 0)
    page = receive(db, 0, 2)
    with db.transaction(force_rollback=True):
        repartition(db, 3)
    assert repartition(db, 2) == 0
    assert (receive(db, 0, 2), ack(db, 0, 2)) == (page, 1)


def test_what_cannot_be_repartitioned_is_refused(db: Connection) -> None:
    queue_with_slots(db, 2)
    for n in (0, 257, None):
        with refused("PQ005", "1 to 256 slots"):
            repartition(db, n)
    for level in ("repeatable read", "serializable"):
        with refused("PQ013", level), db.transaction():
            db.execute(f"set transaction isolation level {level}".encode())
            repartition(db, 3)
    db.make_queue("plain")
    with refused("PQ002", '"c"', '"plain"'):
        db.value("select pgque.repartition('plain', 'c', 2)")
    with refused("PQ001", "nosuch"):
        db.value("select pgque.repartition('nosuch', 'c', 2)")


def test_nothing_is_left_of_earlier_slots_and_others_are_left_alone(db: Connection) -> None:
    queue_with_slots(db, 4)
    db.value("select pgque.register_consumer('q', 'plain')")
    db.make_queue("other")
    publish_round(db, 0)
    db.send("elsewhere", queue="other")
    db.tick("other")
    consume(db, 4)
    assert repartition(db, 2) == 0
    batch = db.value("select pgque.next_batch('q', 'plain')")
    assert len(db.rows("select * from pgque.get_batch_events(%s)", batch)) == len(KEYS)
    assert list(roles(db)) == ["c", "c#0/2", "c#1/2", "plain"]


class TestBatches:
    """Slots that are read by batches."""

    @pytest.fixture
    def parted(self, db: Connection) -> Connection:
        """A queue whose consumer c has two slots."""
        db.make_queue(consumers=())
        slot_batches.subscribe(db)
        return db

    @pytest.mark.parametrize("most", [None, 2])
    def test_a_slot_that_is_behind_gets_batches_up_to_the_change(
        self, parted: Connection, most: int | None
    ) -> None:
        """Also if its callers want more events in a batch than it has."""
        for number in range(2):
            publish_round(parted, number)
            slot_batches.finish(parted, taken(parted, 1))
        assert repartition(parted, 3) == 1
        publish_round(parted, 2)
        states = "select is_due from pgque.consumer_states('{q}', '{c}', i_min_count => 1000)"
        assert parted.rows(f"{states} where sub_role = 'slot'") == [(True,), (False,)]
        assert take(parted, 1) is None
        assert in_order(slot_batches.drain(parted, 2, most=most)) == {
            key: [0, 1] if key in keys_of(parted, 0) else [] for key in KEYS
        }
        assert repartition(parted, 3) == 0
        assert in_order(slot_batches.drain(parted, 3)) == {key: [2] for key in KEYS}

    def test_a_claim_of_an_earlier_slot_is_refused(self, parted: Connection) -> None:
        publish_round(parted, 0)
        claimed = taken(parted, 0)
        slot_batches.finish(parted, claimed)
        for n in (3, 2):
            repartition(parted, n)
        publish_round(parted, 1)
        with refused("PQ003", f"batch {claimed.batch}"):
            take(parted, 0, batch=claimed.batch)
        with refused("PQ002"):
            take(parted, 2, 3)

    def test_the_deployment_stays(self, parted: Connection) -> None:
        enter = "select pgque.enter_deployment('q', 'c', %s)"
        assert [parted.value(enter, "production") for _ in range(2)] == [1, 0]
        repartition(parted, 3)
        with refused("PQ024", "production", "laptop"):
            parted.value(enter, "laptop")
        move = "select pgque.move_to_deployment('q', 'c', %s)"
        assert parted.value(move, "laptop") == "production"
        assert parted.value(enter, "laptop") == 0
        states = "select distinct deployment from pgque.consumer_states('{q}', '{c}')"
        assert parted.rows(states) == [("laptop",)]

    def test_a_deployment_is_of_one_consumer(self, parted: Connection) -> None:
        enter = "select pgque.enter_deployment('q', %s, %s)"
        for consumer in ("other", "third"):
            parted.value("select pgque.subscribe_slots('q', %s, 2)", consumer)
        parted.value(enter, "other", "production")
        repartition(parted, 3)
        assert [parted.value(enter, each, "laptop") for each in ("c", "third")] == [1, 1]
