"""Rotation gives space back by TRUNCATE, and takes no entry that somebody needs."""

import threading
import time
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
    publish_many,
    remove,
    rotate,
    stored,
    tables,
)
from tests.support.queues.sql import Connection, refused


def test_a_consumer_that_is_always_consuming_is_moved(db: Connection) -> None:
    make_sp(db)
    publish(db, "a")
    numbers(db)
    db.execute("update pgque.config set metadata_rotation_period = '0'")
    assert db.value("select qgres.maint()") == 1
    consumer = db.another()
    for text, steps in (("b", 0), ("c", 1)):
        publish(db, text)
        consumer.execute("begin")
        assert [text for _, text in consume(consumer)] == [text]
        assert db.value("select qgres.maint()") == steps
        consumer.execute("commit")
    rotate(db)
    assert numbers(db) == []
    assert publish(db, "d") == [4]
    assert consume(db) == [(4, "d")]


def test_a_queue_that_is_always_published_to_rotates(db: Connection) -> None:
    make_sp(db)
    publish(db, "a")
    numbers(db)
    db.execute("update pgque.config set metadata_rotation_period = '0'")
    stopping = threading.Event()

    def publish_slowly(own: Connection) -> None:
        while not stopping.is_set():
            with own.transaction():
                publish(own, "b")
                own.value("select pg_sleep(0.05)::text")

    sessions = [db.another() for _ in range(6)]
    with ThreadPoolExecutor(len(sessions)) as pool:
        publishers = [pool.submit(publish_slowly, own) for own in sessions]
        try:
            for own in sessions:
                db.wait_until_blocked(own)
            assert any(db.value("select qgres.maint()") == 1 for _ in range(20))
        finally:
            stopping.set()
        for each in publishers:
            each.result()


def test_a_page_may_span_both_halves(db: Connection) -> None:
    queue = make_sp(db, consumers=("fast", "slow"))
    publish_many(db, 4)
    numbers(db, "fast")
    numbers(db, "slow", 1)
    rotate(db)
    publish_many(db, 4)
    assert db.value("select is_left from qgres._queue")
    assert numbers(db, "slow", 5) == [2, 3, 4, 5, 6]
    assert numbers(db, "slow") == [7, 8]
    assert numbers(db, "fast") == [5, 6, 7, 8]
    rotate(db)
    assert stored(db, queue) <= 4


def test_without_consumers_entries_stay(db: Connection) -> None:
    queue = make_sp(db, consumers=())
    publish_many(db, 3)
    rotate(db)
    db.value("select qgres.consumer__register('sp', 'c')::text")
    publish_many(db, 2)
    assert numbers(db) == [4, 5]
    db.value("select qgres.consumer__drop('sp', 'c')::text")
    publish_many(db, 1)
    rotate(db)
    assert stored(db, queue) >= 1
    with refused("23503", "still has entries"):
        db.value("select qgres.queue__drop('sp')")


def test_entries_that_all_have_read_are_truncated(db: Connection) -> None:
    queue = make_sp(db, consumers=("one", "two", "gone"))
    for first in (1, 21, 41):
        publish_many(db, 20)
        numbers(db, "one")
        rotate(db)
        assert stored(db, queue) == 20
        numbers(db, "two", 5)
        rotate(db)
        assert stored(db, queue) == 20
        assert numbers(db, "two") == list(range(first + 5, first + 20))
        if first == 1:
            rotate(db)
            assert stored(db, queue) == 20
            db.value("select qgres.consumer__drop('sp', 'gone')::text")
        rotate(db)
        assert (stored(db, queue), stored(db, queue, "position")) == (0, 0)
    assert numbers(db, "one") == []


@pytest.mark.parametrize("level", ["read committed", "repeatable read"])
def test_an_open_writer_keeps_its_half(db: Connection, level: str) -> None:
    """One with an old snapshot adds to the half that this shows, which may be left since."""
    queue = make_sr(db)
    writer = begun(db.another(), level)
    add(db, "a")
    if level == "read committed":
        add(writer, "late")
    assert remove(db) == ["a"]
    rotate(db)
    if level == "repeatable read":
        add(writer, "late")
    writer.execute("commit")
    rotate(db)
    assert remove(db) == ["late"]
    rotate(db)
    rotate(db)
    assert stored(db, queue) == 0


def test_rotation_waits_for_a_held_snapshot_but_for_the_patience_at_most(db: Connection) -> None:
    sp, sr = make_sp(db), make_sr(db)
    for patience in (None, "0"):
        publish(db, "a")
        add(db, "a")
        reader = db.another().hold_snapshot()
        assert len(consume(db)) == len(remove(db)) == 1
        rotate(db)
        assert (stored(db, sp), stored(db, sr)) == (1, 1)
        if patience is None:
            assert (stored(reader, sp), stored(reader, sr)) == (1, 1)
            reader.execute("rollback")
        else:
            db.value("select pgque.set_snapshot_patience('0')::text")
        rotate(db)
        rotate(db)
        assert (stored(db, sp), stored(db, sr)) == (0, 0)
    with refused("40001"):
        consume(reader)


@pytest.mark.parametrize("is_held", [False, True])
def test_no_call_leaves_dead_rows(db: Connection, is_held: bool) -> None:
    sp, sr = make_sp(db, consumers=("one", "two")), make_sr(db)
    if is_held:
        db.another().hold_snapshot()
    for _ in range(30):
        publish(db, "a")
        numbers(db, "one")
        add(db, "a", "b")
        remove(db, 1)
    numbers(db, "two", 10)
    db.value("select pg_stat_force_next_flush()::text")
    for name in (*tables(db, sp), *tables(db, sr), "qgres._queue", "qgres._consumer"):
        assert db.value("select pg_stat_get_dead_tuples(%s::regclass)", name) == 0, name


def test_the_engines_maintenance_rotates(db: Connection) -> None:
    queue = make_sp(db)
    publish(db, "a")
    consume(db)
    db.execute("update pgque.config set metadata_rotation_period = '0'")
    assert ("qgres",) in db.rows("select func_arg from pgque.maint_operations()")
    for _ in range(4):
        db.value("select count(*) from pgque.maint()")
    assert stored(db, queue) == 0
    db.hold_snapshot()
    with refused("PQ013", "maintenance cannot run in a repeatable read transaction"):
        db.value("select qgres.maint()")


def test_many_queues_rotate_in_portions_and_idle_ones_not_at_all(db: Connection) -> None:
    make_sr(db)
    queues = [make_sp(db, f"q{nr}") for nr in range(25)]
    publish(db, "a", queue="q0")
    add(db, "a")
    assert rotate(db) == 0
    for nr in range(25):
        publish(db, "a", queue=f"q{nr}")
        consume(db, queue=f"q{nr}")
    assert db.value("select qgres.maint()") == 10
    rotate(db)
    assert sum(stored(db, queue) for queue in queues) == 0
    assert publish(db, "b", queue="q7") == [2]


def test_rotation_waits_for_publishers_only_while_it_holds_no_queue(db: Connection) -> None:
    queues = {f"q{number}": make_sp(db, f"q{number}") for number in range(8)}
    for name in queues:
        publish(db, "a", queue=name)
        consume(db, queue=name)
    db.execute("update pgque.config set metadata_rotation_period = '0'")
    publisher = db.another()
    with publisher.transaction():
        for name in queues:
            if name != "q0":
                publish(publisher, "b", queue=name)
        # It waits two seconds once, not for each of seven queues.
        db.execute("set statement_timeout = '10s'")
        assert db.value("select qgres.maint()") == 1
    for name in queues:
        consume(db, queue=name)
    rotate(db)
    assert sum(stored(db, number) for number in queues.values()) == 0


def test_consumers_that_overlap_all_the_time_do_not_keep_a_half(db: Connection) -> None:
    names = [f"c{number}" for number in range(4)]
    queue = make_sp(db, consumers=tuple(names))
    db.execute("update pgque.config set metadata_rotation_period = '0'")
    stopping = threading.Event()
    read: dict[str, list[int]] = {name: [] for name in names}

    def consume_slowly(name: str, own: Connection, delay: float) -> None:
        stopping.wait(delay)
        while not stopping.is_set():
            with own.transaction():
                read[name] += numbers(own, name)
                stopping.wait(0.2)  # longer than the step waits for the lock
        read[name] += numbers(own, name)

    with ThreadPoolExecutor(len(names)) as pool:
        running = [
            pool.submit(consume_slowly, name, db.another(), number / 20)
            for number, name in enumerate(names)
        ]
        try:
            ends_at = time.monotonic() + 60
            is_emptied = was_left = False
            while not is_emptied and time.monotonic() < ends_at:
                publish(db, "a")
                db.value("select qgres.maint()")
                is_left = db.value("select is_left from qgres._queue")
                is_emptied = was_left and not is_left
                was_left = is_left
        finally:
            stopping.set()
        for each in running:
            each.result()
    assert is_emptied
    last = publish(db, "last")[0]
    for name in names:
        assert read[name] + numbers(db, name) == list(range(1, last + 1))
    assert stored(db, queue) < last
