"""Rotation reclaims event tables by TRUNCATE, and never takes an event that somebody needs."""

import pytest

from tests.support.queues.sql import Connection, refused


@pytest.fixture
def fast(db: Connection) -> Connection:
    """A queue that rotates whenever it is asked."""
    db.make_queue(rotation_period="1 microsecond")
    return db


def step1(db: Connection) -> int:
    done: int = db.value("select pgque.maint_rotate_tables_step1('q')")
    return done


def step2(db: Connection) -> int:
    done: int = db.value("select pgque.maint_rotate_tables_step2()")
    return done


def current(db: Connection) -> int:
    number: int = db.value("select queue_cur_table from pgque.queue")
    return number


def rotate_often(db: Connection, times: int = 6) -> None:
    for _ in range(times):
        db.rotate()
        db.tick()


def test_consumed_events_are_truncated_after_two_more_rotations(q: Connection) -> None:
    q.send("a")
    before = q.value("select pgque.current_event_table('q')")
    q.received()
    assert q.rotate() == 1
    assert q.value("select pgque.current_event_table('q')") != before
    assert q.rotate() == 1
    with q.transaction(force_rollback=True):
        assert step1(q) == 1
    assert q.stored_payloads() == {"a"}
    assert (q.rotate(), q.stored_payloads()) == (1, set())


def test_a_queue_without_consumers_rotates_and_keeps_what_is_not_ticked(bare: Connection) -> None:
    bare.send("a")
    assert ([bare.rotate() for _ in range(4)], bare.stored_payloads()) == ([1] * 4, {"a"})
    bare.tick()
    assert ([bare.rotate() for _ in range(3)], bare.stored_payloads()) == ([1] * 3, set())


def test_a_second_rotation_waits_for_step_two_in_another_transaction(fast: Connection) -> None:
    fast.send("a")
    with fast.transaction():
        assert (step1(fast), step2(fast)) == (1, 0)
    assert (step1(fast), step2(fast), step1(fast)) == (0, 1, 1)


def test_rotation_waits_for_no_reader_and_no_rival(fast: Connection) -> None:
    other = fast.another()
    with other.transaction():
        other.value(f"select count(*) from pgque.event_{fast.queue_id()}")
        assert step1(fast) == 0
    fast.send("a")
    with other.transaction():
        assert (step1(other), step1(fast)) == (1, 0)


def test_what_truncates_refuses_an_old_snapshot(q: Connection) -> None:
    q.make_queue("gone", consumers=())
    q.value("select pgque.drop_queue('gone')")
    for call in (
        "maint()",
        "maint_rotate_tables_step1('q')",
        "maint_compact_positions()",
        "maint_compact_ticks()",
        "maint_empty_half('tick')",
        "maint_event_tables()",
    ):
        q.execute("begin isolation level serializable")
        with refused("PQ013", "serializable"):
            q.value(f"select pgque.{call}")
        q.rollback()


def test_event_tables_hold_no_dead_tuples_after_a_load(q: Connection) -> None:
    for _ in range(5):
        batch = q.open_batch(*[str(n) for n in range(50)])
        q.value("select pgque.nack_batch(%s, %s, '0')", batch, q.event_ids(batch)[:5])
        q.finish(batch)
        q.rotate()
        q.value("select pgque.maint()")
        q.value("select pgque.ticker()")
    q.value("select pg_stat_force_next_flush()::text")
    assert q.rows(
        "select sum(n_dead_tup), sum(n_tup_upd), sum(n_tup_del), sum(n_tup_ins) > 200"
        " from pg_stat_all_tables where relname ~ '^event_'",
    ) == [(0, 0, 0, True)]


class TestASnapshotOlderThanWhatConsumersDid:
    """A dump takes its snapshot first and its locks later; TRUNCATE empties tables for both."""

    @pytest.fixture
    def old(self, fast: Connection) -> Connection:
        """A transaction that sees the event unread, which is consumed by now."""
        fast.publish("a")
        fast.rotate()
        fast.rotate()
        holder = fast.another().hold_snapshot()
        fast.drain()
        return holder

    def check_that_it_keeps_its_events_until_it_ends(self, db: Connection, old: Connection) -> None:
        rotate_often(db)
        assert old.stored_payloads() == {"a"}
        old.rollback()
        rotate_often(db)
        assert db.stored_payloads() == set()

    def test_keeps_its_events_until_it_ends(self, fast: Connection, old: Connection) -> None:
        self.check_that_it_keeps_its_events_until_it_ends(fast, old)

    def test_is_waited_for_within_the_patience(self, fast: Connection, old: Connection) -> None:
        fast.value("select pgque.set_snapshot_patience('0')::text")
        rotate_often(fast)
        assert old.stored_payloads() == set()

    @pytest.mark.parametrize("registers", [False, True])
    def test_lets_go_what_was_consumed_before_a_newer_one(
        self, fast: Connection, old: Connection, registers: bool
    ) -> None:
        """A consumer that registers does not let it wait again."""
        fast.rotate()
        if not registers:
            old.rollback()
        newer = fast.another().hold_snapshot()
        if registers:
            fast.value("select pgque.register_consumer('q', 'new')")
            old.rollback()
        rotate_often(fast)
        assert fast.stored_payloads() == set()
        newer.rollback()

    def test_keeps_what_a_new_consumer_needs(self, fast: Connection, old: Connection) -> None:
        fast.rotate()
        fast.value("select pgque.register_consumer_at('q', 'new', 1)")
        old.rollback()
        rotate_often(fast)
        assert fast.payloads(fast.next_batch(consumer="new")) == ["a"]

    def test_is_waited_for_after_a_long_pause(self, fast: Connection) -> None:
        """Longer ago than the patience, as with the default rotation period."""
        fast.publish("a")
        rotate_often(fast, 2)
        fast.execute("update pgque.snapshot_wait set began_at = now() - interval '3 hours'")
        old = fast.another().hold_snapshot()
        fast.drain()
        self.check_that_it_keeps_its_events_until_it_ends(fast, old)

    def test_is_waited_for_after_a_way_back(self, fast: Connection) -> None:
        fast.send("a")
        fast.received()
        old = fast.another().hold_snapshot()
        assert fast.rotate() == 0  # it notes where the consumer stands
        old.rollback()
        fast.value("select pgque.register_consumer_at('q', 'c', 1)")
        old.hold_snapshot()
        fast.drain()
        self.check_that_it_keeps_its_events_until_it_ends(fast, old)
