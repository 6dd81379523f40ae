"""Cooperative consumers at once: whatever the order, no event is lost or doubled."""

from typing import Any

import pytest

from tests.support.queues.races import Step, race
from tests.support.queues.sql import Connection, refused
from tests.support.queues.workers import next_of, queue_with_ticks, register, roles, unregister


def asks(worker: str, dead: str | None = None) -> Step:
    return lambda db: next_of(db, worker, dead)


def joins(worker: str, *, convert: bool = False) -> Step:
    return lambda db: register(db, worker, convert=convert)


def leaves(worker: str) -> Step:
    return lambda db: unregister(db, worker)


def unregisters_main(db: Connection) -> Any:
    return db.value("select pgque.unregister_consumer('q', 'c')")


def unregisters_worker(db: Connection) -> Any:
    return db.value("select pgque.unregister_consumer('q', 'c.w1')")


class TestTwoAtOnce:
    def test_of_two_that_unregister_a_consumer_one_did(self, q: Connection) -> None:
        first, answer = race(q, unregisters_main, unregisters_main)
        assert (first, answer.result()) == (1, 0)

    def test_two_workers_get_different_batches(self, db: Connection) -> None:
        queue_with_ticks(db, "a", "b")
        register(db, "w2")
        first, answer = race(db, asks("w1"), asks("w2"))
        assert (db.payloads(first), db.payloads(answer.result())) == (["a"], ["b"])

    def test_a_batch_that_was_rolled_back_goes_to_the_one_who_waited(self, db: Connection) -> None:
        queue_with_ticks(db, "a")
        register(db, "w2")
        _, answer = race(db, asks("w1"), asks("w2"), rollback=True)
        assert db.payloads(answer.result()) == ["a"]

    def test_one_worker_in_two_sessions_has_one_batch(self, db: Connection) -> None:
        queue_with_ticks(db, "a", "b")
        batch, answer = race(db, asks("w1"), asks("w1"))
        assert answer.result() == batch


@pytest.mark.parametrize(
    ("before", "first", "second", "expected", "after"),
    [
        # A group is founded once, and a worker registered once.
        ([unregisters_main], joins("w1"), joins("w2"), 1, "c c.w1 c.w2"),
        ([], joins("w2"), joins("w2"), 0, "c c.w1 c.w2"),
        # A worker who just got a batch does not leave, and one leaves once.
        ([], asks("w1"), leaves("w1"), "PQ016", "c c.w1"),
        ([joins("w2")], leaves("w1"), leaves("w1"), 0, "c c.w2"),
        # Whoever leaves meets a new one.
        ([], joins("w2"), leaves("w1"), 1, "c c.w2"),
        ([], joins("w2"), unregisters_worker, 1, "c c.w2"),
        ([joins("w2")], unregisters_worker, unregisters_worker, None, "c c.w2"),
        ([leaves("w1")], joins("w2", convert=True), unregisters_main, "PQ016", "c c.w2"),
        # A consumer opens a batch or is converted.
        ([leaves("w1")], Connection.next_batch, joins("w1", convert=True), "PQ016", "c"),
        ([leaves("w1")], joins("w1", convert=True), Connection.next_batch, "PQ015", "c c.w1"),
    ],
)
def test_members_come_and_go(
    db: Connection,
    before: list[Step],
    first: Step,
    second: Step,
    expected: object,
    after: str,
) -> None:
    queue_with_ticks(db, "a")
    if before == [unregisters_main]:
        unregister(db, "w1")
    for step in before:
        step(db)
    _, answer = race(db, first, second)
    if isinstance(expected, str):
        with refused(expected):
            answer.result()
    else:
        assert expected in (None, answer.result())
    members = dict.fromkeys(after.split()[1:], "coop_member")
    assert roles(db) == {"c": "coop_main" if members else "normal", **members}


def test_a_worker_who_leaves_takes_no_batch_along(db: Connection) -> None:
    queue_with_ticks(db, "a")
    register(db, "w2")
    _, answer = race(db, leaves("w1"), asks("w1"))
    assert db.payloads(answer.result()) == ["a"]


def test_an_old_snapshot_is_told_to_start_again(db: Connection) -> None:
    queue_with_ticks(db, "a", "b")
    register(db, "w2")
    old = db.another().hold_snapshot()
    next_of(db, "w1")
    with refused("40001"):
        next_of(old, "w2")
    old.execute("rollback")
    assert db.payloads(next_of(db, "w2")) == ["b"]
