"""Sessions of one queue at the same time, those that roll back and die among them."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.publishers import Publishers
from tests.support.queues import Connection, connect, refused, rows, value, wait_until_blocked
from tests.support.serial import (
    add,
    consume,
    make_sp,
    make_sr,
    numbers,
    publish,
    remove,
    rotate,
)

Another = Callable[[], Connection]


def test_a_rollback_returns_the_number(db: Connection) -> None:
    make_sp(db)
    publish(db, "a")
    with db.transaction(force_rollback=True):
        assert publish(db, "b", "c") == [2, 3]
    assert publish(db, "d") == [2]
    assert consume(db) == [(1, "a"), (2, "d")]


def test_a_savepoint_returns_the_number(db: Connection) -> None:
    make_sp(db)
    with db.transaction():
        publish(db, "a")
        with db.transaction(force_rollback=True):
            publish(db, "b")
        assert publish(db, "c") == [2]
    assert consume(db) == [(1, "a"), (2, "c")]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_publisher_waits_for_the_one_before(
    db: Connection, another: Another, background: ThreadPoolExecutor, end: str
) -> None:
    make_sp(db)
    second = another()
    db.execute("begin")
    publish(db, "a")
    waiting = background.submit(publish, second, "b")
    wait_until_blocked(another(), second)
    assert consume(another()) == []
    db.execute(end.encode())
    assert waiting.result() == [2 if end == "commit" else 1]


def test_a_killed_publisher_leaves_no_gap(
    db: Connection, database_url: str, another: Another, background: ThreadPoolExecutor
) -> None:
    make_sp(db)
    first, second = connect(database_url), another()
    first.execute("begin")
    publish(first, "a")
    waiting = background.submit(publish, second, "b")
    wait_until_blocked(db, second)
    value(db, "select pg_terminate_backend(%s)", first.info.backend_pid)
    assert waiting.result() == [1]
    first.close()
    assert consume(db) == [(1, "b")]


def test_publishers_of_two_queues_do_not_wait(db: Connection, another: Another) -> None:
    make_sp(db, "one")
    make_sp(db, "two")
    with db.transaction():
        publish(db, "a", queue="one")
        assert publish(another(), "b", queue="two") == [1]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_an_old_snapshot_gets_no_number_twice(db: Connection, another: Another, level: str) -> None:
    make_sp(db)
    old = another()
    old.execute(f"begin isolation level {level}; select 1".encode())
    value(old, "select count(*) from qgres.queue")
    publish(db, "a")
    with refused("40001", "could not serialize access"):
        publish(old, "b")
    old.execute("rollback")
    assert publish(old, "c") == [2]


def test_an_old_snapshot_does_not_publish_behind_a_switch(db: Connection, another: Another) -> None:
    make_sp(db)
    old = another()
    old.execute("begin isolation level repeatable read")
    value(old, "select count(*) from qgres.queue")
    publish(db, "a")
    consume(db)
    rotate(db)
    with refused("40001"):
        publish(old, "b")


def test_an_old_snapshot_does_not_consume_twice(db: Connection, another: Another) -> None:
    make_sp(db)
    publish(db, "a", "b", "c")
    old = another()
    old.execute("begin isolation level repeatable read")
    value(old, "select count(*) from qgres.queue")
    assert numbers(db, limit=2) == [1, 2]
    with refused("40001", "could not serialize access"):
        numbers(old, limit=1)
    old.execute("rollback")
    assert numbers(old) == [3]


def test_an_old_snapshot_does_not_remove_twice(db: Connection, another: Another) -> None:
    make_sr(db)
    add(db, "a", "b")
    old = another()
    old.execute("begin isolation level repeatable read")
    value(old, "select count(*) from qgres.queue")
    assert len(remove(db, 1)) == 1
    with refused("40001", "could not serialize access"):
        remove(old, 1)
    old.execute("rollback")
    assert len(remove(old)) == 1


def test_a_consumer_that_rolls_back_gets_the_entries_again(db: Connection) -> None:
    make_sp(db)
    publish(db, "a", "b")
    with db.transaction(force_rollback=True):
        assert numbers(db, limit=1) == [1]
        assert numbers(db) == [2]
    assert numbers(db) == [1, 2]


def test_a_remover_that_rolls_back_gets_the_entries_again(db: Connection) -> None:
    make_sr(db)
    add(db, "a", "b", "c")
    with db.transaction(force_rollback=True):
        assert len(remove(db, 2)) == 2
        assert len(remove(db)) == 1
    assert remove(db) == ["a", "b", "c"]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_two_sessions_of_one_consumer_take_turns(
    db: Connection, another: Another, background: ThreadPoolExecutor, end: str
) -> None:
    make_sp(db)
    publish(db, "a", "b")
    second = another()
    db.execute("begin")
    assert numbers(db, limit=1) == [1]
    waiting = background.submit(numbers, second)
    wait_until_blocked(another(), second)
    db.execute(end.encode())
    assert waiting.result() == ([2] if end == "commit" else [1, 2])


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_removers_take_turns(
    db: Connection, another: Another, background: ThreadPoolExecutor, end: str
) -> None:
    make_sr(db)
    add(db, "a", "b")
    second = another()
    db.execute("begin")
    (first,) = remove(db, 1)
    waiting = background.submit(remove, second)
    wait_until_blocked(another(), second)
    db.execute(end.encode())
    left = sorted({"a", "b"} - {first}) if end == "commit" else ["a", "b"]
    assert waiting.result() == left


def test_consumers_of_two_names_do_not_wait(db: Connection, another: Another) -> None:
    make_sp(db, consumers=("one", "two"))
    publish(db, "a")
    with db.transaction():
        assert numbers(db, "one") == [1]
        assert numbers(another(), "two") == [1]


def test_an_entry_that_commits_late_is_removed_later(db: Connection, another: Another) -> None:
    make_sr(db)
    late = another()
    late.execute("begin")
    add(late, "late")
    for text in ("a", "b", "c"):
        add(db, text)
        assert remove(db) == [text]
    late.execute("commit")
    add(db, "d")
    assert (remove(db, 1), remove(db)) == (["late"], ["d"])
    assert remove(db) == []


def test_own_entries_of_a_transaction_are_removed_once(db: Connection, another: Another) -> None:
    make_sr(db)
    other = another()
    with db.transaction():
        add(db, "a", "b", "c")
        assert remove(db, 2) == ["a", "b"]
        add(other, "x")
    with other.transaction():
        add(other, "m", "n")
        assert len(remove(other, 1)) == 1
    rest = remove(db, 1) + remove(db, 1) + remove(db)
    assert len(rest) == 3
    assert sorted(rest) == sorted(set(rest))
    assert remove(db) == []


def test_many_publishers_leave_no_gap_and_consumers_see_the_order(
    db: Connection, database_url: str
) -> None:
    make_sp(db, consumers=("fast", "slow"))
    fast: list[tuple[int, str]] = []
    slow: list[tuple[int, str]] = []
    with Publishers(database_url, 4, 60) as publishers:
        while publishers.are_running:
            fast += consume(db, "fast")
            with db.transaction(force_rollback=len(fast) % 2 == 0):
                batch = consume(db, "slow", 7)
            slow += batch if len(fast) % 2 else []
            rotate(db)
    fast += consume(db, "fast")
    slow += consume(db, "slow")
    assert [number for number, _ in fast] == list(range(1, len(fast) + 1))
    assert slow == fast
    for thread, texts in publishers.committed.items():
        assert [text for _, text in fast if text.startswith(f"{thread}:")] == texts


def test_many_sessions_add_and_remove_each_entry_once(db: Connection, database_url: str) -> None:
    make_sr(db)
    removed: list[str] = []
    lock = threading.Lock()
    adding = threading.Event()

    def add_all(thread: int) -> None:
        with connect(database_url) as own:
            for nr in range(80):
                with own.transaction(force_rollback=nr % 5 == 4):
                    add(own, f"{thread}:{nr}", f"{thread}:{nr}b")

    def remove_all() -> None:
        with connect(database_url) as own:
            for nr in range(10_000):
                is_last = not adding.is_set()
                with own.transaction(force_rollback=nr % 3 == 2 and not is_last):
                    found = remove(own, None if is_last else nr % 9 + 1)
                if nr % 3 != 2 or is_last:
                    with lock:
                        removed.extend(found)
                if is_last:
                    return

    adding.set()
    with ThreadPoolExecutor() as pool:
        removers = [pool.submit(remove_all) for _ in range(2)]
        adders = [pool.submit(add_all, nr) for nr in range(3)]
        while not all(adder.done() for adder in adders):
            rotate(db)
        adding.clear()
        for future in [*adders, *removers]:
            future.result()
    expected = [
        f"{thread}:{nr}{suffix}"
        for thread in range(3)
        for nr in range(80)
        if nr % 5 != 4
        for suffix in ("", "b")
    ]
    assert sorted(removed) == sorted(expected)


DROPPED = {
    "\"Publish\"('sp', 'a'::text)": "queue_id 1 does not exist",
    "consume('sp', 'c')": "queue_id 1 does not exist",
    "add('sr', 'a'::text)": "queue_id 2 does not exist",
    "\"Remove\"('sr')": "queue_id 2 does not exist",
}


@pytest.mark.parametrize("call", DROPPED)
@pytest.mark.parametrize("is_warm", [False, True])
def test_a_call_behind_a_drop_says_that_there_is_no_queue(
    db: Connection, another: Another, background: ThreadPoolExecutor, call: str, is_warm: bool
) -> None:
    make_sp(db)
    make_sr(db)
    second = another()
    if is_warm:  # its statements are prepared then
        rows(second, f"select 1 from qgres.{call}")
    db.execute("begin")
    value(db, "select count(qgres.queue__drop(queue_id, true)) from qgres.queue")
    waiting = background.submit(rows, second, f"select 1 from qgres.{call}")
    wait_until_blocked(another(), second)
    db.execute("commit")
    with refused("P0002", DROPPED[call]):
        waiting.result()


def test_an_old_snapshot_adds_to_no_dropped_queue(db: Connection, another: Another) -> None:
    make_sr(db)
    old = another()
    with old.transaction():
        old.execute("set transaction isolation level repeatable read")
        assert value(old, "select count(*) from qgres.queue") == 1
        value(db, "select qgres.queue__drop('sr', true)::text")
        with refused("40001", "queue_id 1 was dropped"), old.transaction():
            add(old, "a")
