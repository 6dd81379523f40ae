"""A range of ticks as a batch: the position follows the reader's record, and never goes back."""

from typing import Any, NamedTuple

import pytest

from tests.support.queues.races import race
from tests.support.queues.sql import Connection, refused


class Claim(NamedTuple):
    batch: int
    epoch: int
    start: int
    end: int
    registration: int


def claim(db: Connection, *ticks: int | None, owner: str = "me", **more: Any) -> Claim:
    named = "".join(f", {name} => %s" for name in ("i_from_tick", "i_to_tick")[: len(ticks)])
    named += "".join(f", {name} => %s" for name in more)
    columns = "batch_id, epoch, prev_tick_id, cur_tick_id, registration_id"
    sql = f"select {columns} from pgque.claim_ticks('q', 'c', %s{named})"
    (row,) = db.rows(sql, owner, *ticks, *more.values())
    return Claim(*row)


def position(db: Connection) -> int:
    return db.value("select sub_last_tick from pgque.subscription")


@pytest.fixture
def ticks(db: Connection) -> list[int]:
    """The consumer's position, and three ticks after it, with one event before each."""
    db.make_queue()
    return [position(db), *(db.publish(text) for text in ("a", "b", "c"))]


def test_a_range_of_ticks_holds_their_events_and_finishes_what_lies_before(
    db: Connection, ticks: list[int]
) -> None:
    claimed = claim(db, ticks[1], ticks[3])
    assert db.payloads(claimed.batch) == ["b", "c"]
    assert (claimed.start, claimed.end) == (ticks[1], ticks[3])
    assert position(db) == ticks[1]


def test_the_same_range_again_is_the_same_batch_and_another_range_another(
    db: Connection, ticks: list[int]
) -> None:
    first = claim(db, ticks[0], ticks[2])
    assert claim(db, ticks[0], ticks[2]).batch == first.batch

    second = claim(db, ticks[0], ticks[1])
    assert db.payloads(second.batch) == ["a"]
    with refused("PQ003", str(first.batch)):
        db.events(first.batch)


def test_the_same_tick_twice_holds_the_consumer_with_an_empty_batch(
    db: Connection, ticks: list[int]
) -> None:
    claimed = claim(db, ticks[1], ticks[1])
    assert db.events(claimed.batch) == []
    with refused("PQ004", '"me"'):
        db.next_batch()


class TestLease:
    def test_a_live_one_keeps_others_out(self, db: Connection, ticks: list[int]) -> None:
        claim(db, ticks[0], ticks[1])
        with refused("PQ004", '"me"', "until"):
            claim(db, ticks[0], ticks[1], owner="rival")

    def test_a_holder_goes_on_under_his_epoch(self, db: Connection, ticks: list[int]) -> None:
        first = claim(db, ticks[0], ticks[1])
        second = claim(db, ticks[1], ticks[2], i_epoch=first.epoch)
        assert second.epoch == first.epoch
        assert db.payloads(second.batch) == ["b"]

    def test_one_that_ran_out_is_taken_over_and_the_zombie_cannot_go_on(
        self, db: Connection, ticks: list[int]
    ) -> None:
        zombie = claim(db, ticks[0], ticks[1], i_ttl="1 microsecond", owner="zombie")
        heir = claim(db, ticks[0], ticks[1], owner="heir")
        assert (heir.batch, heir.epoch) == (zombie.batch, zombie.epoch + 1)
        db.value("select pgque.release_batch(%s, 'heir', %s)", heir.batch, heir.epoch)

        with refused("PQ012", "zombie"):
            claim(db, ticks[1], ticks[2], owner="zombie", i_epoch=zombie.epoch)
        assert position(db) == ticks[0]

    def test_a_holder_whose_batch_somebody_finished_is_told(
        self, db: Connection, ticks: list[int]
    ) -> None:
        first = claim(db, ticks[0], ticks[1], i_ttl="1 microsecond")
        db.finish(first.batch)
        with refused("PQ012", "q/c", "another owner"):
            claim(db, ticks[1], ticks[2], i_epoch=first.epoch)

    def test_of_two_newcomers_at_once_one_is_refused(
        self, db: Connection, ticks: list[int]
    ) -> None:
        _, late = race(
            db, lambda one: claim(one, owner="first"), lambda two: claim(two, owner="second")
        )
        with refused("PQ004", '"first"'):
            late.result()


class TestRefused:
    def test_is_a_range_before_the_position(self, db: Connection, ticks: list[int]) -> None:
        claim(db, ticks[2], ticks[3])
        with refused("PQ023", f"has finished tick {ticks[2]}", f"tick {ticks[0]}"):
            claim(db, ticks[0], ticks[3])
        assert position(db) == ticks[2]

    def test_are_ticks_that_do_not_exist_are_of_another_queue_or_run_backwards(
        self, db: Connection, ticks: list[int]
    ) -> None:
        db.make_queue("other", ("c",))
        for _ in range(20):
            db.tick("other")
        start = ticks[0]
        for end in (start + 100, db.last_tick("other")):
            with refused("PQ023", "its last one is", str(ticks[3])):
                claim(db, start, end)
        with refused("PQ023", "its last one is", str(ticks[3])):
            claim(db, start + 100, start + 100)
        with refused("PQ005", "earlier"):
            claim(db, ticks[2], ticks[1])

    def test_is_a_shared_consumer(self, bare: Connection) -> None:
        bare.value("select pgque.register_subconsumer('q', 'c', 'worker')")
        with refused("PQ015"):
            claim(bare)
        with refused("PQ015"):
            bare.value("select pgque.next_tick('q', 'c')")


def test_a_consumer_registered_again_has_another_registration(
    db: Connection, ticks: list[int]
) -> None:
    before = claim(db)
    db.value("select pgque.unregister_consumer('q', 'c')")
    with refused("PQ002", '"c"'):
        claim(db, i_epoch=before.epoch)
    db.value("select pgque.register_consumer('q', 'c')")
    assert claim(db).registration != before.registration


def test_the_next_tick_is_the_farthest_within_a_maximum(db: Connection, ticks: list[int]) -> None:
    def next_tick(*limits: int | None) -> int | None:
        return db.value("select pgque.next_tick('q', 'c', %s, %s)", *limits)

    assert next_tick(None, None) == ticks[3] == db.last_tick()
    assert next_tick(ticks[0], 2) == ticks[2]
    assert next_tick(ticks[1], 1) == ticks[2]
    assert next_tick(ticks[3], None) is None
    many = db.publish(*"abcdef")
    db.publish("g")
    assert next_tick(ticks[3], 2) == many  # which has more than the maximum, so it comes alone
    with refused("PQ005", "max_count"):
        next_tick(None, 0)


def test_redelivered_events_count_towards_the_maximum(q: Connection) -> None:
    batch = q.open_batch("a", "b", "c", "d")
    q.value("select pgque.nack_batch(%s, %s, '0')", batch, q.event_ids(batch))
    q.finish(batch)
    q.value("select pgque.maint_retry_events()")
    again = q.tick()
    q.publish("e")
    assert q.value("select pgque.next_tick('q', 'c', null, 4)") == again
    assert q.value("select pgque.next_tick('q', 'c', null, 5)") == q.last_tick()
