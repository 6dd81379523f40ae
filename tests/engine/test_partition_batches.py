"""Slots read by batches: claim, read, ack and release with the functions of normal consumers."""

from collections.abc import Callable

import pytest

from tests.support.queues import Connection, make_queue, refused, rows, value
from tests.support.slot_batches import (
    Claim,
    finish,
    keys_of,
    let_go,
    publish_round,
    read,
    subscribe,
    take,
    taken,
)
from tests.support.slots import (
    ack,
    claim,
    expire,
    nack,
    publish_keyed,
    queue_with_slots,
    receive,
    release,
    texts,
)


@pytest.fixture
def parted(db: Connection) -> Connection:
    """A queue whose consumer c has two slots."""
    make_queue(db, consumers=())
    subscribe(db)
    return db


class TestBatches:
    def test_a_batch_of_a_slot_has_the_events_of_its_keys_only(self, parted: Connection) -> None:
        publish_round(parted, 0)
        for slot in (0, 1):
            found = read(parted, taken(parted, slot))
            assert found == [f"{key}: 0" for key in keys_of(parted, slot)]

    def test_events_without_a_key_are_in_slot_0(self, parted: Connection) -> None:
        publish_keyed(parted, (None, "plain"))
        assert read(parted, taken(parted, 0)) == ["plain"]
        assert read(parted, taken(parted, 1)) == []

    def test_slots_have_batches_of_different_ids(self, parted: Connection) -> None:
        publish_round(parted, 0)
        assert taken(parted, 0).batch != taken(parted, 1).batch

    def test_a_slot_that_is_not_acked_holds_up_itself_alone(self, parted: Connection) -> None:
        publish_round(parted, 0)
        failing = taken(parted, 0)
        let_go(parted, failing)
        finish(parted, taken(parted, 1))
        publish_round(parted, 1)
        assert read(parted, taken(parted, 1)) == [f"{key}: 1" for key in keys_of(parted, 1)]
        again = taken(parted, 0)
        assert again.batch == failing.batch
        assert read(parted, again) == [f"{key}: 0" for key in keys_of(parted, 0)]

    def test_a_takeover_refuses_the_earlier_holder(self, parted: Connection) -> None:
        publish_round(parted, 0)
        stale = taken(parted, 0, owner="stale")
        expire(parted, 0)
        fresh = taken(parted, 0, owner="fresh", batch=stale.batch)
        for call in ("ack_batch", "renew_batch", "release_batch"):
            with refused("PQ012", "fresh"):
                value(parted, f"select pgque.{call}(%s, %s, %s)", *stale)
        finish(parted, fresh)

    def test_an_ack_leaves_the_slot_free(self, parted: Connection) -> None:
        publish_round(parted, 0)
        finish(parted, taken(parted, 0, owner="one"))
        publish_round(parted, 1)
        assert taken(parted, 0, owner="other")

    def test_events_are_dead_lettered_for_the_slot(self, parted: Connection) -> None:
        publish_round(parted, 0)
        claimed = taken(parted, 0)
        given_up = value(parted, "select pgque.give_up_batch(%s, 'bad', %s, %s)", *claimed)
        assert given_up == len(keys_of(parted, 0))
        assert rows(parted, "select consumer_name, dead_letters from pgque.dlq_summary('q')") == [
            ("c#0/2", given_up)
        ]
        assert take(parted, 0) is None

    def test_a_batch_can_be_held(self, parted: Connection) -> None:
        publish_round(parted, 0)
        claimed = taken(parted, 0)
        let_go(parted, claimed)
        value(parted, "select pgque.hold_batch(%s, %s, 'why')", claimed.batch, claimed.epoch)
        assert rows(
            parted,
            "select subconsumer_name, held_reason from pgque.consumer_states('{q}', '{c}')"
            " where held_reason is not null",
        ) == [("0/2", "why")]

    def test_the_states_name_each_slot(self, parted: Connection) -> None:
        publish_round(parted, 0)
        claimed = taken(parted, 1)
        assert rows(
            parted,
            "select consumer_name, subconsumer_name, sub_role, batch_id, is_due"
            " from pgque.consumer_states('{q}', '{c}')",
        ) == [
            ("c", None, "partitioned", None, False),
            ("c", "0/2", "slot", None, True),
            ("c", "1/2", "slot", claimed.batch, False),
        ]


class TestPages:
    """A worker's pages and whole batches of one slot exclude each other by the lease."""

    def test_a_worker_keeps_batches_off_its_slot(self, db: Connection) -> None:
        queue_with_slots(db, 1)
        publish_keyed(db, ("k", "a"))
        with refused("PQ004", 'the slot of q/c#0/1 is leased by "w"'):
            take(db, 0, 1)
        receive(db, 0, 1)
        with refused("PQ004", 'is leased by "w"'):
            take(db, 0, 1)

    def test_a_batch_keeps_workers_off_the_slot(self, parted: Connection) -> None:
        publish_round(parted, 0)
        taken(parted, 0)
        assert claim(parted, 0) is None

    def test_a_batch_goes_on_after_the_last_acked_page(self, db: Connection) -> None:
        queue_with_slots(db, 1)
        publish_keyed(db, ("k", "a"), ("k", "b"), ("k", "c"))
        receive(db, 0, 1, most=1)
        ack(db, 0, 1)
        receive(db, 0, 1, most=1)
        release(db, 0)
        assert read(db, taken(db, 0, 1)) == ["b", "c"]

    @pytest.mark.parametrize("ends", [let_go, lambda db, claimed: expire(db, 0)])
    def test_no_worker_gets_a_slot_with_an_open_batch(
        self, parted: Connection, ends: Callable[[Connection, Claim], None]
    ) -> None:
        """Its results may be stored under its id, so its next attempt must have the same events."""
        publish_round(parted, 0)
        claimed = taken(parted, 0)
        first = read(parted, claimed)
        ends(parted, claimed)
        assert [claim(parted, 0, worker) for worker in ("w", "run")] == [None, None]
        again = taken(parted, 0)
        assert (again.batch, read(parted, again)) == (claimed.batch, first)

    def test_a_worker_gets_what_follows_an_acked_batch(self, parted: Connection) -> None:
        publish_round(parted, 0)
        finish(parted, taken(parted, 0))
        publish_round(parted, 1)
        assert claim(parted, 0) is not None
        assert texts(receive(parted, 0)) == [f"{key}: 1" for key in keys_of(parted, 0)]

    def test_an_open_batch_stays_as_it_is_when_a_held_event_becomes_due(
        self, db: Connection
    ) -> None:
        queue_with_slots(db, 1, policy="pause")
        first, *_ = publish_keyed(db, ("k", "k1"))
        receive(db, 0, 1)
        nack(db, first, 0, 1, after="1 hour")
        ack(db, 0, 1)
        release(db, 0)
        publish_keyed(db, ("k", "k2"), ("l", "l1"))
        claimed = taken(db, 0, 1)
        assert read(db, claimed) == ["l1"]
        let_go(db, claimed)
        db.execute("update pgque.partition_held set retry_after = now()")
        if claim(db, 0) is not None:
            receive(db, 0, 1)
            ack(db, 0, 1)
            release(db, 0)
        assert read(db, taken(db, 0, 1)) == ["l1"]

    def test_events_behind_a_paused_one_come_after_it(self, db: Connection) -> None:
        queue_with_slots(db, 1, policy="pause")
        first, *_ = publish_keyed(db, ("k", "a"), ("l", "x"), ("k", "b"))
        receive(db, 0, 1)
        nack(db, first, 0, 1, after="1 hour")
        release(db, 0)
        claimed = taken(db, 0, 1)
        assert read(db, claimed) == ["x"]
        finish(db, claimed)
        publish_keyed(db, ("k", "c"), ("l", "y"))
        claimed = taken(db, 0, 1)
        assert read(db, claimed) == ["y"]
        finish(db, claimed)
        db.execute(
            "update pgque.partition_held set retry_after = now() where retry_after is not null"
        )
        claimed = taken(db, 0, 1)
        assert read(db, claimed) == ["a", "b", "c"]
        finish(db, claimed)
        assert take(db, 0, 1) is None


class TestExpiry:
    def with_a_failed_event(self, db: Connection) -> None:
        """Event a waits for an hour, b behind it; a expires."""
        queue_with_slots(db, 1, policy="pause", event_ttl="1 hour")
        first, *_ = publish_keyed(db, ("k", "a"), ("k", "b"))
        receive(db, 0, 1)
        nack(db, first, 0, 1, after="2 hours")
        ack(db, 0, 1)
        release(db, 0)
        assert take(db, 0, 1) is None
        assert self.is_due(db) is False
        db.execute(
            "update pgque.partition_held set ev_time = ev_time - interval '2 hours'"
            " where ev_data = 'a'"
        )

    def is_due(self, db: Connection) -> bool:
        due: bool = value(
            db,
            "select is_due from pgque.consumer_states('{q}', '{c}', i_min_count => 1000)"
            " where sub_role = 'slot'",
        )
        return due

    def test_an_expired_event_lets_those_behind_it_go_on(self, db: Connection) -> None:
        self.with_a_failed_event(db)
        claimed = taken(db, 0, 1)
        assert read(db, claimed) == ["b"]
        finish(db, claimed)
        assert value(db, "select count(*) from pgque.partition_held") == 0

    def test_later_events_of_its_key_go_on_too(self, db: Connection) -> None:
        self.with_a_failed_event(db)
        db.execute("delete from pgque.partition_held where ev_data = 'b'")
        publish_keyed(db, ("k", "c"))
        claimed = taken(db, 0, 1)
        assert read(db, claimed) == ["c"]

    def test_a_slot_is_due_for_what_expires(self, db: Connection) -> None:
        self.with_a_failed_event(db)
        assert self.is_due(db) is True
        finish(db, taken(db, 0, 1))
        assert self.is_due(db) is False

    def test_a_claim_that_finds_nothing_else_drops_what_expired(self, db: Connection) -> None:
        self.with_a_failed_event(db)
        db.execute("delete from pgque.partition_held where ev_data = 'b'")
        assert self.is_due(db) is True
        assert take(db, 0, 1) is None
        assert self.is_due(db) is False
        assert value(db, "select count(*) from pgque.partition_held") == 0

    def test_a_batch_that_is_open_does_not_grow(self, db: Connection) -> None:
        self.with_a_failed_event(db)
        db.execute("update pgque.partition_held set ev_time = now() where ev_data = 'a'")
        publish_keyed(db, ("k", "c"), ("l", "x"))
        claimed = taken(db, 0, 1)
        db.execute("update pgque.partition_held set ev_time = now() - interval '2 hours'")
        let_go(db, claimed)
        assert read(db, taken(db, 0, 1)) == ["x"]
