"""Rotation reclaims event tables by TRUNCATE, and never takes an event that somebody needs."""

import pytest

from tests.support.queues import (
    Another,
    Connection,
    bloat_ticks,
    drain,
    event_ids,
    finish,
    hold_snapshot,
    make_queue,
    next_batch,
    open_batch,
    payloads,
    queue_id,
    received,
    refused,
    rotate,
    rows,
    send,
    stored_payloads,
    tick,
    value,
)


@pytest.fixture
def fast(db: Connection) -> Connection:
    """A queue that rotates whenever it is asked."""
    make_queue(db, rotation_period="1 microsecond")
    return db


def step1(db: Connection) -> int:
    done: int = value(db, "select pgque.maint_rotate_tables_step1('q')")
    return done


def step2(db: Connection) -> int:
    done: int = value(db, "select pgque.maint_rotate_tables_step2()")
    return done


def current(db: Connection) -> int:
    number: int = value(db, "select queue_cur_table from pgque.queue")
    return number


def rotate_often(db: Connection, times: int = 6) -> None:
    for _ in range(times):
        rotate(db)
        tick(db)


def test_consumed_events_are_truncated_after_two_more_rotations(q: Connection) -> None:
    send(q, "a")
    before = value(q, "select pgque.current_event_table('q')")
    received(q)
    assert rotate(q) == 1
    assert value(q, "select pgque.current_event_table('q')") != before
    assert rotate(q) == 1
    with q.transaction(force_rollback=True):
        assert step1(q) == 1
    assert stored_payloads(q) == {"a"}
    assert (rotate(q), stored_payloads(q)) == (1, set())


def test_a_queue_rotates_no_earlier_than_its_period(db: Connection) -> None:
    make_queue(db, rotation_period="1 hour")
    assert step1(db) == 0


def test_an_idle_queue_rotates_until_it_is_empty(fast: Connection) -> None:
    found = []
    for number in range(6):
        value(fast, "select pgque.maint()")
        found.append(current(fast))
        if number == 0:
            send(fast, "a")
            received(fast)
    assert (found, stored_payloads(fast)) == ([0, 1, 2, 0, 0, 0], set())


def test_a_queue_without_consumers_rotates_and_keeps_what_is_not_ticked(db: Connection) -> None:
    make_queue(db, consumers=())
    send(db, "a")
    assert ([rotate(db) for _ in range(4)], stored_payloads(db)) == ([1] * 4, {"a"})
    tick(db)
    assert ([rotate(db) for _ in range(3)], stored_payloads(db)) == ([1] * 3, set())


def test_a_second_rotation_waits_for_step_two_in_another_transaction(fast: Connection) -> None:
    send(fast, "a")
    with fast.transaction():
        assert (step1(fast), step2(fast)) == (1, 0)
    assert (step1(fast), step2(fast), step1(fast)) == (0, 1, 1)


def test_a_lagging_consumer_keeps_its_events(db: Connection) -> None:
    make_queue(db, consumers=("fast", "slow"))
    for number in range(8):
        send(db, str(number))
        received(db, consumer="fast")
        rotate(db)
    assert drain(db, consumer="slow") == list("01234567")


def test_an_open_batch_keeps_its_events(q: Connection) -> None:
    batch = open_batch(q, "a")
    rotate_often(q)
    assert payloads(q, batch) == ["a"]


def test_a_batch_across_rotations_is_whole_and_in_order(q: Connection) -> None:
    for text in "abc":
        send(q, text)
        rotate(q)
    assert received(q) == ["a", "b", "c"]


def test_a_producer_open_across_rotations_loses_nothing(q: Connection, another: Another) -> None:
    producer = another()
    with producer.transaction():
        send(producer, "before")
        rotate_often(q, 3)
        send(producer, "after")
        drain(q)
        rotate_often(q, 3)
    assert received(q) == ["before", "after"]


def test_events_that_come_into_the_oldest_table_are_kept(q: Connection, another: Another) -> None:
    stale = value(q, "select pgque.current_event_table('q')")
    producer = hold_snapshot(another())
    value(producer, "select count(*) from pgque.queue")
    rotate_often(q, 2)
    send(producer, "by an old snapshot")
    producer.execute("commit")
    q.execute(f"insert into {stale} (ev_data) values ('by copy')".encode())
    rotate_often(q)
    assert sorted(drain(q)) == ["by an old snapshot", "by copy"]


def test_rotation_waits_for_no_reader_and_no_rival(fast: Connection, another: Another) -> None:
    other = another()
    with other.transaction():
        value(other, f"select count(*) from pgque.event_{queue_id(fast)}")
        assert step1(fast) == 0
    send(fast, "a")
    with other.transaction():
        assert (step1(other), step1(fast)) == (1, 0)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_what_truncates_refuses_an_old_snapshot(q: Connection, level: str) -> None:
    for call in (
        "maint()",
        "maint_rotate_tables_step1('q')",
        "maint_compact_positions()",
        "maint_compact_ticks()",
    ):
        q.execute(f"begin isolation level {level}".encode())
        with refused("PQ013", level):
            value(q, f"select pgque.{call}")
        q.rollback()


def test_event_tables_hold_no_dead_tuples_after_a_load(q: Connection) -> None:
    for _ in range(5):
        batch = open_batch(q, *[str(n) for n in range(50)])
        value(q, "select pgque.nack_batch(%s, %s, '0')", batch, event_ids(q, batch)[:5])
        finish(q, batch)
        rotate(q)
        value(q, "select pgque.maint()")
        value(q, "select pgque.ticker()")
    value(q, "select pg_stat_force_next_flush()::text")
    assert rows(
        q,
        "select sum(n_dead_tup), sum(n_tup_upd), sum(n_tup_del), sum(n_tup_ins) > 200"
        " from pg_stat_all_tables where relname ~ '^event_'",
    ) == [(0, 0, 0, True)]


def test_maint_does_everything_that_is_due(fast: Connection) -> None:
    batch = open_batch(fast, "broken")
    value(fast, "select pgque.nack_batch(%s, %s, '0')", batch, event_ids(fast, batch))
    finish(fast, batch)
    bloat_ticks(fast, 1200)
    drain(fast)
    assert value(fast, "select pgque.maint()") >= 2
    value(fast, "select pgque.maint()")
    tick(fast)
    assert value(fast, "select count(*) from pgque.tick") < 10
    assert drain(fast) == ["broken"]


class TestASnapshotOlderThanWhatConsumersDid:
    """A dump takes its snapshot first and its locks later; TRUNCATE empties tables for both."""

    @pytest.fixture
    def old(self, fast: Connection, another: Another) -> Connection:
        """A transaction that sees the event unread, which is consumed by now."""
        send(fast, "a")
        tick(fast)
        rotate(fast)
        rotate(fast)
        holder = hold_snapshot(another())
        drain(fast)
        return holder

    def check_that_it_keeps_its_events_until_it_ends(self, db: Connection, old: Connection) -> None:
        rotate_often(db)
        assert stored_payloads(old) == {"a"}
        old.rollback()
        rotate_often(db)
        assert stored_payloads(db) == set()

    def test_keeps_its_events_until_it_ends(self, fast: Connection, old: Connection) -> None:
        self.check_that_it_keeps_its_events_until_it_ends(fast, old)

    def test_is_waited_for_within_the_patience(self, fast: Connection, old: Connection) -> None:
        value(fast, "select pgque.set_snapshot_patience('0')::text")
        rotate_often(fast)
        assert stored_payloads(old) == set()

    @pytest.mark.parametrize("registers", [False, True])
    def test_lets_go_what_was_consumed_before_a_newer_one(
        self, fast: Connection, old: Connection, another: Another, registers: bool
    ) -> None:
        """A consumer that registers does not let it wait anew."""
        rotate(fast)
        if not registers:
            old.rollback()
        newer = hold_snapshot(another())
        if registers:
            value(fast, "select pgque.register_consumer('q', 'new')")
            old.rollback()
        rotate_often(fast)
        assert stored_payloads(fast) == set()
        newer.rollback()

    def test_keeps_what_a_new_consumer_needs(self, fast: Connection, old: Connection) -> None:
        rotate(fast)
        value(fast, "select pgque.register_consumer_at('q', 'new', 1)")
        old.rollback()
        rotate_often(fast)
        assert payloads(fast, next_batch(fast, consumer="new")) == ["a"]

    def test_is_waited_for_after_a_long_pause(self, fast: Connection, another: Another) -> None:
        """Longer ago than the patience, as with the default rotation period."""
        send(fast, "a")
        tick(fast)
        rotate_often(fast, 2)
        fast.execute("update pgque.snapshot_wait set began_at = now() - interval '3 hours'")
        old = hold_snapshot(another())
        drain(fast)
        self.check_that_it_keeps_its_events_until_it_ends(fast, old)

    def test_is_waited_for_after_a_way_back(self, fast: Connection, another: Another) -> None:
        send(fast, "a")
        received(fast)
        old = hold_snapshot(another())
        assert rotate(fast) == 0  # it notes where the consumer stands
        old.rollback()
        value(fast, "select pgque.register_consumer_at('q', 'c', 1)")
        hold_snapshot(old)
        drain(fast)
        self.check_that_it_keeps_its_events_until_it_ends(fast, old)
