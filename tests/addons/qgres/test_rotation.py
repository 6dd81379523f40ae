"""Rotation gives space back by TRUNCATE, and takes no entry that somebody needs."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.support.queues import Connection, refused, rows, value, wait_until_blocked
from tests.support.serial import (
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

Another = Callable[[], Connection]


@contextmanager
def held_snapshot(connection: Connection) -> Iterator[None]:
    """A transaction that keeps an old snapshot, as a dump does."""
    connection.execute("begin isolation level repeatable read")
    value(connection, "select count(*) from qgres.queue")
    yield
    connection.execute("rollback")


def dead_rows(db: Connection, queue: int) -> list[int]:
    """Dead row versions in each table of a queue, by the statistics of this session."""
    value(db, "select pg_stat_force_next_flush()::text")
    return [
        value(db, "select pg_stat_get_dead_tuples(%s::regclass)", name)
        for name in tables(db, queue)
    ]


def test_entries_that_all_have_read_are_truncated(db: Connection) -> None:
    queue = make_sp(db, consumers=("one", "two"))
    publish_many(db, 20)
    numbers(db, "one")
    rotate(db)
    assert stored(db, queue) == 20
    numbers(db, "two", 5)
    rotate(db)
    assert stored(db, queue) == 20
    assert numbers(db, "two") == list(range(6, 21))
    rotate(db)
    assert (stored(db, queue), stored(db, queue, "position")) == (0, 0)


def test_a_consumer_that_is_always_consuming_is_moved(db: Connection, another: Another) -> None:
    make_sp(db)
    publish(db, "a")
    numbers(db)
    value(db, "select pgque.set_metadata_rotation_period('0')::text")
    assert value(db, "select qgres.maint()") == 1
    consumer = another()
    for text, steps in (("b", 0), ("c", 1)):
        publish(db, text)
        consumer.execute("begin")
        assert [text for _, text in consume(consumer)] == [text]
        assert value(db, "select qgres.maint()") == steps
        consumer.execute("commit")
    rotate(db)
    assert numbers(db) == []
    assert publish(db, "d") == [4]
    assert consume(db) == [(4, "d")]


def test_a_queue_that_is_always_published_to_rotates(db: Connection, another: Another) -> None:
    make_sp(db)
    publish(db, "a")
    numbers(db)
    value(db, "select pgque.set_metadata_rotation_period('0')::text")
    stopping = threading.Event()

    def publish_slowly(own: Connection) -> None:
        while not stopping.is_set():
            with own.transaction():
                publish(own, "b")
                value(own, "select pg_sleep(0.05)::text")

    sessions = [another() for _ in range(6)]
    with ThreadPoolExecutor(len(sessions)) as pool:
        publishers = [pool.submit(publish_slowly, own) for own in sessions]
        try:
            for own in sessions:
                wait_until_blocked(db, own)
            assert any(value(db, "select qgres.maint()") == 1 for _ in range(20))
        finally:
            stopping.set()
        for each in publishers:
            each.result()


def test_numbers_go_on_after_everything_was_truncated(db: Connection) -> None:
    make_sp(db)
    for turn in range(5):
        publish_many(db, 3)
        first = 3 * turn + 1
        assert numbers(db) == [first, first + 1, first + 2]
        rotate(db)
    assert numbers(db) == []


def test_a_page_may_span_both_halves(db: Connection) -> None:
    queue = make_sp(db, consumers=("fast", "slow"))
    publish_many(db, 4)
    numbers(db, "fast")
    numbers(db, "slow", 1)
    rotate(db)
    publish_many(db, 4)
    assert value(db, "select is_left from qgres._queue")
    assert numbers(db, "slow", 5) == [2, 3, 4, 5, 6]
    assert numbers(db, "slow") == [7, 8]
    assert numbers(db, "fast") == [5, 6, 7, 8]
    rotate(db)
    assert stored(db, queue) <= 4


def test_without_consumers_entries_stay(db: Connection) -> None:
    queue = make_sp(db, consumers=())
    publish_many(db, 3)
    rotate(db)
    value(db, "select qgres.consumer__register('sp', 'c')::text")
    publish_many(db, 2)
    assert numbers(db) == [4, 5]
    value(db, "select qgres.consumer__drop('sp', 'c')::text")
    publish_many(db, 1)
    rotate(db)
    assert stored(db, queue) >= 1
    with refused("23503", "still has entries"):
        value(db, "select qgres.queue__drop('sp')")


def test_a_dropped_consumer_holds_nothing_back(db: Connection) -> None:
    queue = make_sp(db, consumers=("fast", "gone"))
    publish_many(db, 3)
    numbers(db, "fast")
    value(db, "select qgres.consumer__drop('sp', 'gone')::text")
    rotate(db)
    assert stored(db, queue) == 0


def test_removed_entries_are_truncated(db: Connection) -> None:
    queue = make_sr(db)
    add(db, *"abcdef")
    assert len(remove(db, 4)) == 4
    rotate(db)
    assert stored(db, queue) == 6
    add(db, "g")
    assert len(remove(db)) == 3
    rotate(db)
    rotate(db)
    assert (stored(db, queue), stored(db, queue, "position")) == (0, 1)
    add(db, "h")
    assert remove(db) == ["h"]


def test_an_open_writer_keeps_its_half(db: Connection, another: Another) -> None:
    queue = make_sr(db)
    writer = another()
    add(db, "a")
    writer.execute("begin")
    add(writer, "late")
    assert remove(db) == ["a"]
    rotate(db)
    writer.execute("commit")
    rotate(db)
    assert remove(db) == ["late"]
    rotate(db)
    rotate(db)
    assert stored(db, queue) == 0


def test_a_writer_that_looked_the_queue_up_before_the_move_loses_nothing(
    db: Connection, another: Another
) -> None:
    """A REPEATABLE READ transaction adds to the half of its snapshot, which may be left since."""
    queue = make_sr(db)
    late = another()
    late.execute("begin isolation level repeatable read")
    value(late, "select count(*) from qgres.queue")
    add(db, "a")
    remove(db)
    rotate(db)
    add(late, "late")
    late.execute("commit")
    rotate(db)
    assert remove(db) == ["late"]
    rotate(db)
    rotate(db)
    assert stored(db, queue) == 0


@pytest.mark.parametrize("kind", ["sp", "sr"])
def test_rotation_waits_for_a_held_snapshot(db: Connection, another: Another, kind: str) -> None:
    queue = make_sp(db) if kind == "sp" else make_sr(db)
    (publish if kind == "sp" else add)(db, "a")
    reader = another()
    with held_snapshot(reader):
        (consume if kind == "sp" else remove)(db)
        rotate(db)
        assert stored(reader, queue) == 1
    rotate(db)
    assert stored(db, queue) == 0


def test_rotation_waits_for_the_patience_at_most(db: Connection, another: Another) -> None:
    queue = make_sp(db)
    publish(db, "a")
    with held_snapshot(another()):
        consume(db)
        rotate(db)
        assert stored(db, queue) == 1
        value(db, "select pgque.set_snapshot_patience('0')::text")
        rotate(db)
        assert stored(db, queue) == 0


def test_a_consumer_whose_snapshot_is_older_than_the_move_is_refused(
    db: Connection, another: Another
) -> None:
    make_sp(db)
    publish(db, "a")
    value(db, "select pgque.set_snapshot_patience('0')::text")
    old = another()
    with held_snapshot(old):
        consume(db)
        rotate(db)
        with refused("40001"):
            consume(old)


def test_an_open_consumer_delays_rotation_and_nobody_else(db: Connection, another: Another) -> None:
    queue = make_sp(db)
    publish(db, "a")
    consumer = another()
    with consumer.transaction():
        assert numbers(consumer) == [1]
        rotate(db)
        assert publish(db, "b") == [2]
    assert stored(db, queue) == 2
    rotate(db)
    assert numbers(db) == [2]
    rotate(db)
    rotate(db)
    assert stored(db, queue) == 0


def test_an_open_publisher_delays_rotation_for_a_moment(db: Connection, another: Another) -> None:
    queue = make_sp(db)
    publish(db, "a")
    consume(db)
    publisher = another()
    with publisher.transaction():
        publish(publisher, "b")
        assert rotate(db) == 0
    consume(db)
    rotate(db)
    assert stored(db, queue) == 0


@pytest.mark.parametrize("is_held", [False, True])
def test_no_call_leaves_dead_rows(db: Connection, another: Another, is_held: bool) -> None:
    sp, sr = make_sp(db, consumers=("one", "two")), make_sr(db)
    with held_snapshot(another() if is_held else db):
        if not is_held:
            db.execute("commit")
        for _ in range(30):
            publish(db, "a")
            numbers(db, "one")
            add(db, "a", "b")
            remove(db, 1)
        numbers(db, "two", 10)
        assert dead_rows(db, sp) == [0, 0, 0, 0]
        assert dead_rows(db, sr) == [0, 0, 0, 0]
        value(db, "select pg_stat_force_next_flush()::text")
        assert value(db, "select pg_stat_get_dead_tuples('qgres._queue'::regclass)") == 0
        assert value(db, "select pg_stat_get_dead_tuples('qgres._consumer'::regclass)") == 0
        if not is_held:
            db.execute("begin")


def test_the_engines_maintenance_rotates(db: Connection) -> None:
    queue = make_sp(db)
    publish(db, "a")
    consume(db)
    value(db, "select pgque.set_metadata_rotation_period('0')::text")
    assert ("qgres",) in rows(db, "select func_arg from pgque.maint_operations()")
    for _ in range(4):
        value(db, "select count(*) from pgque.maint()")
    assert stored(db, queue) == 0


def test_rotation_is_refused_with_an_old_snapshot(db: Connection) -> None:
    with db.transaction():
        db.execute("set transaction isolation level repeatable read")
        with refused("PQ013", "maintenance cannot run in a repeatable read transaction"):
            value(db, "select qgres.maint()")


def test_idle_queues_are_left_alone(db: Connection) -> None:
    for nr in range(3):
        make_sp(db, f"sp{nr}")
        make_sr(db, f"sr{nr}")
    publish(db, "a", queue="sp0")
    add(db, "a", queue="sr0")
    assert rotate(db) == 0


def test_many_queues_rotate_in_portions(db: Connection) -> None:
    queues = [make_sp(db, f"q{nr}") for nr in range(25)]
    for nr in range(25):
        publish(db, "a", queue=f"q{nr}")
        consume(db, queue=f"q{nr}")
    value(db, "select pgque.set_metadata_rotation_period('0')::text")
    assert value(db, "select qgres.maint()") == 10
    rotate(db)
    assert sum(stored(db, queue) for queue in queues) == 0
    assert publish(db, "b", queue="q7") == [2]


def test_rotation_waits_only_while_it_holds_no_queue(db: Connection, another: Another) -> None:
    queues = [f"q{number}" for number in range(8)]
    for name in queues:
        make_sp(db, name)
        publish(db, "a", queue=name)
        consume(db, queue=name)
    value(db, "select pgque.set_metadata_rotation_period('0')::text")
    publisher = another()
    with publisher.transaction():
        for name in queues[1:]:
            publish(publisher, "b", queue=name)
        # It waits two seconds once, not for each of seven queues.
        db.execute("set statement_timeout = '10s'")
        assert value(db, "select qgres.maint()") == 1


def test_consumers_that_overlap_all_the_time_do_not_keep_a_half(
    db: Connection, another: Another
) -> None:
    names = [f"c{number}" for number in range(6)]
    queue = make_sp(db, consumers=tuple(names))
    value(db, "select pgque.set_metadata_rotation_period('0')::text")
    stopping = threading.Event()
    read: dict[str, list[int]] = {name: [] for name in names}

    def consume_slowly(name: str, own: Connection, delay: float) -> None:
        stopping.wait(delay)
        while not stopping.is_set():
            with own.transaction():
                read[name] += numbers(own, name)
                stopping.wait(0.6)  # longer than the step waits for the lock
        read[name] += numbers(own, name)

    sessions = [another() for _ in names]
    with ThreadPoolExecutor(len(sessions)) as pool:
        running = [
            pool.submit(consume_slowly, name, own, number / 10)
            for number, (name, own) in enumerate(zip(names, sessions, strict=True))
        ]
        try:
            ends_at = time.monotonic() + 40
            emptied = was_left = 0
            while emptied < 2 and time.monotonic() < ends_at:
                publish(db, "a")
                value(db, "select qgres.maint()")
                is_left = value(db, "select is_left::int from qgres._queue")
                emptied += is_left < was_left
                was_left = is_left
        finally:
            stopping.set()
        for each in running:
            each.result(10)
    assert emptied == 2
    last = publish(db, "last")[0]
    for name in names:
        assert read[name] + numbers(db, name) == list(range(1, last + 1))
    assert stored(db, queue) < last
