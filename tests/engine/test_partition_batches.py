"""Slots read by batches: claim, read, ack and release with the functions of normal consumers."""

from typing import Any

import pytest

from tests.support.queues.slot_batches import (
    finish,
    keys_of,
    let_go,
    publish_round,
    read,
    subscribe,
    take,
    taken,
)
from tests.support.queues.slots import (
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
from tests.support.queues.sql import Connection, refused


@pytest.fixture
def parted(db: Connection) -> Connection:
    """A queue whose consumer c has two slots, with one event of each key."""
    db.make_queue(consumers=())
    subscribe(db)
    publish_round(db, 0)
    return db


class TestBatches:
    def test_each_slot_has_its_own_batch_of_its_keys_events(self, parted: Connection) -> None:
        publish_keyed(parted, (None, "plain"))
        for slot in (0, 1):
            claimed = taken(parted, slot)
            assert read(parted, claimed) == [f"{key}: 0" for key in keys_of(parted, slot)]
            finish(parted, claimed)
        first, second = taken(parted, 0, owner="another"), taken(parted, 1, owner="another")
        assert first.batch != second.batch
        assert (read(parted, first), read(parted, second)) == (["plain"], [])

    def test_a_batch_that_is_let_go_takes_no_nack_of_a_message_and_no_end(
        self, parted: Connection
    ) -> None:
        claimed = taken(parted, 0)
        let_go(parted, claimed)
        message = "null, null, null, null, null, null, null, null, null)::pgque.message"
        sql = f"select pgque.nack(%s, row(min(ev_id), {message}) from pgque.get_batch_events(%s)"
        with refused("PQ015", "is a slot"):
            parted.value(sql, claimed.batch, claimed.batch)
        with refused("PQ015", "is a slot of a partitioned one"):
            parted.finish(claimed.batch)

    def test_a_slot_that_is_not_acked_holds_up_itself_alone(self, parted: Connection) -> None:
        failing = taken(parted, 0)
        let_go(parted, failing)
        finish(parted, taken(parted, 1))
        publish_round(parted, 1)
        assert read(parted, taken(parted, 1)) == [f"{key}: 1" for key in keys_of(parted, 1)]
        again = taken(parted, 0)
        assert again.batch == failing.batch
        assert read(parted, again) == [f"{key}: 0" for key in keys_of(parted, 0)]

    def test_events_are_dead_lettered_for_the_slot(self, parted: Connection) -> None:
        claimed = taken(parted, 0)
        given_up = parted.value("select pgque.give_up_batch(%s, 'bad', %s, %s)", *claimed)
        assert given_up == len(keys_of(parted, 0))
        assert parted.rows("select consumer_name, dead_letters from pgque.dlq_summary('q')") == [
            ("c#0/2", given_up)
        ]
        assert take(parted, 0) is None

    def test_an_event_is_set_aside_and_the_slot_keeps_the_others(self, parted: Connection) -> None:
        claimed = taken(parted, 0)
        let_go(parted, claimed)
        first = parted.event_ids(claimed.batch)[:1]
        set_aside = "select pgque.set_events_aside(%s, %s, 'bad')"
        assert parted.value(set_aside, claimed.batch, first) == 1
        assert read(parted, taken(parted, 0)) == [f"{key}: 0" for key in keys_of(parted, 0)[1:]]

    def test_a_batch_is_opened_for_another_session_to_claim(self, parted: Connection) -> None:
        opening = "select batch_id, epoch from pgque.open_to_claim('q', 'c#0/2')"
        ((opened, epoch),) = parted.rows(opening)
        assert parted.rows(opening) == [(opened, epoch)]
        assert parted.rows(
            "select batch_id, owner, lease_until from pgque.get_lease_info('q', 'c#0/2')"
        ) == [(opened, None, None)]
        claimed = taken(parted, 0)
        assert claimed == (opened, "run", epoch + 1)
        with refused("PQ004", 'leased by "run"'):
            parted.value(opening)
        finish(parted, claimed)
        assert parted.rows(opening) == [(None, None)]

    def test_the_states_name_each_slot_and_why_its_batch_is_held(self, parted: Connection) -> None:
        claimed = taken(parted, 1)
        columns = "consumer_name, subconsumer_name, sub_role, batch_id, is_due, held_reason"
        states = f"select {columns} from pgque.consumer_states('{{q}}', '{{c}}')"
        assert parted.rows(states) == [
            ("c", None, "partitioned", None, False, None),
            ("c", "0/2", "slot", None, True, None),
            ("c", "1/2", "slot", claimed.batch, False, None),
        ]
        let_go(parted, claimed)
        parted.value("select pgque.hold_batch(%s, %s, 'why')", claimed.batch, claimed.epoch)
        reasons = [(slot, reason) for _, slot, *_, reason in parted.rows(states)]
        assert reasons == [(None, None), ("0/2", None), ("1/2", "why")]


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

    @pytest.mark.parametrize("ends", [release, expire])
    def test_a_batch_goes_on_after_the_last_acked_page(self, db: Connection, ends: Any) -> None:
        queue_with_slots(db, 1)
        publish_keyed(db, ("k", "a"), ("k", "b"), ("k", "c"))
        receive(db, 0, 1, most=1)
        ack(db, 0, 1)
        receive(db, 0, 1, most=1)
        ends(db)
        claimed = taken(db, 0, 1)
        assert read(db, claimed) == ["b", "c"]
        finish(db, claimed)
        assert take(db, 0, 1) is None

    def test_what_comes_again_after_several_pages_is_in_the_next_batch(
        self, db: Connection
    ) -> None:
        """Its id is lower than where the last page began."""
        queue_with_slots(db, 1)
        first, *_ = publish_keyed(db, ("k", "a"), ("k", "b"))
        receive(db, 0, 1, most=1)
        nack(db, first, 0, 1)
        ack(db, 0, 1)
        receive(db, 0, 1, most=1)
        ack(db, 0, 1)
        assert receive(db, 0, 1) == []
        db.value("select pgque.maint_retry_events()")
        db.tick()
        assert texts(receive(db, 0, 1)) == ["a"]

    @pytest.mark.parametrize("ends", [let_go, lambda db, claimed: expire(db, 0)])
    def test_no_worker_gets_a_slot_with_an_open_batch(self, parted: Connection, ends: Any) -> None:
        """Its results may be stored under its id, so its next attempt must have the same events."""
        claimed = taken(parted, 0)
        assert claim(parted, 0) is None
        first = read(parted, claimed)
        ends(parted, claimed)
        assert [claim(parted, 0, worker) for worker in ("w", "run")] == [None, None]
        again = taken(parted, 0)
        assert (again.batch, read(parted, again)) == (claimed.batch, first)

    def test_a_worker_gets_what_follows_an_acked_batch(self, parted: Connection) -> None:
        finish(parted, taken(parted, 0))
        publish_round(parted, 1)
        assert claim(parted, 0) is not None
        assert texts(receive(parted, 0)) == [f"{key}: 1" for key in keys_of(parted, 0)]
