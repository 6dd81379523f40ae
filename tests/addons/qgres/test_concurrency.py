"""Sessions of one queue at the same time, those that roll back and die among them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.addons.conftest import begun
from tests.support.addons.serial import (
    add,
    consume,
    make_sp,
    make_sr,
    numbers,
    publish,
    remove,
    rotate,
)
from tests.support.queues.sql import Connection, connect, refused

either_end = pytest.mark.parametrize("end", ["commit", "rollback"])


def test_what_rolls_back_returns_its_numbers(db: Connection) -> None:
    make_sp(db)
    publish(db, "a")
    with db.transaction(force_rollback=True):
        assert publish(db, "b", "c") == [2, 3]
    with db.transaction():
        publish(db, "d")
        with db.transaction(force_rollback=True):
            publish(db, "e")
        assert publish(db, "f") == [3]
    assert consume(db) == [(1, "a"), (2, "d"), (3, "f")]


def test_a_consumer_and_a_remover_that_roll_back_get_the_entries_again(db: Connection) -> None:
    make_sp(db)
    make_sr(db)
    publish(db, "a", "b")
    add(db, "a", "b", "c")
    with db.transaction(force_rollback=True):
        assert (numbers(db, limit=1), numbers(db)) == ([1], [2])
        assert (len(remove(db, 2)), len(remove(db))) == (2, 1)
    assert (numbers(db), remove(db)) == ([1, 2], ["a", "b", "c"])


@either_end
def test_a_publisher_waits_for_the_one_before(db: Connection, end: str) -> None:
    make_sp(db)
    begun(db)
    publish(db, "a")
    waiting = db.blocked(publish, "b")
    assert consume(db.another()) == []
    db.execute(end)
    assert waiting.result() == [2 if end == "commit" else 1]


def test_a_killed_publisher_leaves_no_gap(db: Connection, database_url: str) -> None:
    make_sp(db)
    first = begun(connect(database_url))
    publish(first, "a")
    waiting = db.blocked(publish, "b")
    db.value("select pg_terminate_backend(%s)", first.info.backend_pid)
    assert waiting.result() == [1]
    first.close()
    assert consume(db) == [(1, "b")]


def test_publishers_of_two_queues_and_consumers_of_two_names_do_not_wait(db: Connection) -> None:
    make_sp(db, "one")
    make_sp(db, "two", consumers=("c", "d"))
    with db.transaction():
        publish(db, "a", queue="one")
        assert publish(db.another(), "b", queue="two") == [1]
        assert (
            consume(db, "c", queue="two") == consume(db.another(), "d", queue="two") == [(1, "b")]
        )


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_an_old_snapshot_gets_no_number_twice(db: Connection, level: str) -> None:
    make_sp(db)
    old = begun(db.another(), level)
    publish(db, "a")
    with refused("40001", "could not serialize access"):
        publish(old, "b")
    old.execute("rollback")
    assert publish(old, "c") == [2]
    old = begun(db.another(), level)
    consume(db)
    rotate(db)  # the number is in the other half now
    with refused("40001"):
        publish(old, "d")


def remove_numbers(db: Connection, limit: int | None = None) -> list[int]:
    return [int(text) for text in remove(db, limit)]


def consume_numbers(db: Connection, limit: int | None = None) -> list[int]:
    return numbers(db, limit=limit)


Take = Callable[..., list[int]]
either_way = pytest.mark.parametrize("take", [consume_numbers, remove_numbers])


@pytest.fixture
def three(db: Connection) -> Connection:
    """A queue of each type, with the entries 1, 2 and 3."""
    make_sp(db)
    make_sr(db)
    publish(db, "1", "2", "3")
    add(db, "1", "2", "3")
    return db


@either_way
def test_an_old_snapshot_gets_no_entry_twice(three: Connection, take: Take) -> None:
    old = three.another().hold_snapshot()
    taken = take(three, 2)
    with refused("40001", "could not serialize access"):
        take(old, 1)
    old.execute("rollback")
    assert sorted(taken + take(old)) == [1, 2, 3]


@either_way
@either_end
def test_two_sessions_that_take_entries_take_turns(three: Connection, take: Take, end: str) -> None:
    begun(three)
    taken = take(three, 1)
    waiting = three.blocked(take)
    three.execute(end)
    assert waiting.result() == sorted({1, 2, 3} - ({*taken} if end == "commit" else set()))


def test_an_entry_that_commits_late_is_removed_later(db: Connection) -> None:
    make_sr(db)
    late = begun(db.another())
    add(late, "late")
    for text in ("a", "b", "c"):
        add(db, text)
        assert remove(db) == [text]
    late.execute("commit")
    add(db, "d")
    assert (remove(db, 1), remove(db)) == (["late"], ["d"])
    assert remove(db) == []


def test_own_entries_of_a_transaction_are_removed_once(db: Connection) -> None:
    make_sr(db)
    other = db.another()
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


@pytest.mark.parametrize("is_warm", [False, True])
def test_a_call_behind_a_drop_says_that_there_is_no_queue(db: Connection, is_warm: bool) -> None:
    for call, number in (
        ("\"Publish\"('sp', 'a'::text)", 0),
        ("consume('sp', 'c')", 0),
        ("add('sr', 'a'::text)", 1),
        ("\"Remove\"('sr')", 1),
    ):
        ids = (make_sp(db), make_sr(db))
        second = db.another()
        if is_warm:  # its statements are prepared then
            second.rows(f"select 1 from qgres.{call}")
        with ThreadPoolExecutor() as pool:
            begun(db)
            db.value("select count(qgres.queue__drop(queue_id, true)) from qgres.queue")
            waiting = pool.submit(Connection.rows, second, f"select 1 from qgres.{call}")
            db.another().wait_until_blocked(second)
            db.execute("commit")
            with refused("P0002", f"queue_id {ids[number]} does not exist"):
                waiting.result()


def test_an_old_snapshot_adds_to_no_dropped_queue(db: Connection) -> None:
    make_sr(db)
    old = db.another().hold_snapshot()
    db.value("select qgres.queue__drop('sr', true)::text")
    with refused("40001", "queue_id 1 was dropped"):
        add(old, "a")
