"""Rotation reclaims event tables by TRUNCATE, and never takes an event that somebody needs."""

from collections.abc import Callable

import pytest

from tests.support.queues import (
    Connection,
    bloat_ticks,
    drain,
    finish,
    make_queue,
    next_batch,
    open_batch,
    payloads,
    queue_id,
    refused,
    rotate,
    rows,
    send,
    stored_payloads,
    tick,
    value,
)

Another = Callable[[], Connection]
AT_ONCE = {"rotation_period": "1 microsecond"}


def step1(db: Connection) -> int:
    done: int = value(db, "select pgque.maint_rotate_tables_step1('q')")
    return done


def step2(db: Connection) -> int:
    done: int = value(db, "select pgque.maint_rotate_tables_step2()")
    return done


def rotate_often(db: Connection, times: int = 6) -> None:
    for _ in range(times):
        rotate(db)
        tick(db)


def test_consumed_events_are_truncated_after_two_more_rotations(db: Connection) -> None:
    make_queue(db)
    send(db, "a")
    tick(db)
    drain(db)
    done = [rotate(db) for _ in range(3)]
    assert (done, stored_payloads(db)) == ([1, 1, 1], set())


def test_a_rotation_sends_new_events_to_the_next_table(db: Connection) -> None:
    make_queue(db)
    send(db, "a")
    before = value(db, "select pgque.current_event_table('q')")
    rotate(db)
    assert value(db, "select pgque.current_event_table('q')") != before


def test_a_queue_rotates_no_earlier_than_its_period(db: Connection) -> None:
    make_queue(db, rotation_period="1 hour")
    assert step1(db) == 0


def test_an_idle_queue_rotates_until_it_is_empty(db: Connection) -> None:
    make_queue(db, **AT_ONCE)

    def current_after_maintenance() -> int:
        value(db, "select pgque.maint()")
        return int(value(db, "select queue_cur_table from pgque.queue"))

    assert current_after_maintenance() == 0
    send(db, "a")
    tick(db)
    drain(db)
    assert [current_after_maintenance() for _ in range(5)] == [1, 2, 0, 0, 0]
    assert stored_payloads(db) == set()


def test_a_queue_without_consumers_rotates_what_is_ticked(db: Connection) -> None:
    make_queue(db, consumers=())
    send(db, "a")
    tick(db)
    assert [rotate(db) for _ in range(3)] == [1] * 3


def test_events_that_are_not_ticked_are_kept_even_without_consumers(db: Connection) -> None:
    make_queue(db, consumers=())
    send(db, "a")
    assert ([rotate(db) for _ in range(4)], stored_payloads(db)) == ([1, 1, 1, 1], {"a"})


def test_a_second_rotation_without_step_two_does_not_happen(db: Connection) -> None:
    make_queue(db, **AT_ONCE)
    send(db, "a")
    assert (step1(db), step1(db), step2(db), step1(db)) == (1, 0, 1, 1)


def test_step_two_in_the_transaction_of_step_one_does_not_count(db: Connection) -> None:
    make_queue(db, **AT_ONCE)
    send(db, "a")
    with db.transaction():
        step1(db)
        noted = step2(db)
    assert (noted, step1(db)) == (0, 0)


def test_a_rolled_back_rotation_loses_nothing(db: Connection) -> None:
    make_queue(db)
    batch = open_batch(db, "a")
    finish(db, batch)
    rotate(db)
    rotate(db)
    with db.transaction(force_rollback=True):
        truncated = step1(db)
    assert (truncated, stored_payloads(db)) == (1, {"a"})


def test_a_lagging_consumer_keeps_its_events(db: Connection) -> None:
    make_queue(db, consumers=("fast", "slow"))
    texts = []
    for number in range(8):
        texts.append(str(number))
        send(db, str(number))
        tick(db)
        drain(db, consumer="fast")
        rotate(db)
    assert drain(db, consumer="slow") == texts


def test_an_open_batch_keeps_its_events(db: Connection) -> None:
    make_queue(db)
    batch = open_batch(db, "a")
    rotate_often(db)
    assert payloads(db, batch) == ["a"]


def test_a_batch_across_a_rotation_is_whole_and_in_order(db: Connection) -> None:
    make_queue(db)
    send(db, "a")
    rotate(db)
    send(db, "b")
    rotate(db)
    send(db, "c")
    tick(db)
    assert drain(db) == ["a", "b", "c"]


def test_a_producer_open_across_rotations_loses_nothing(db: Connection, another: Another) -> None:
    make_queue(db)
    producer = another()
    with producer.transaction():
        send(producer, "before")
        rotate_often(db, 3)
        send(producer, "after")
        drain(db)
        rotate_often(db, 3)
    tick(db)
    assert drain(db) == ["before", "after"]


def test_a_producer_with_an_old_snapshot_inserts_into_the_old_table_and_loses_nothing(
    db: Connection, another: Another
) -> None:
    make_queue(db)
    producer = another()
    producer.execute("begin isolation level repeatable read")
    value(producer, "select count(*) from pgque.queue")
    rotate_often(db, 2)
    send(producer, "into the oldest table")
    producer.execute("commit")
    rotate_often(db)
    assert drain(db) == ["into the oldest table"]


def test_events_copied_into_a_stale_table_are_kept(db: Connection) -> None:
    make_queue(db)
    stale = value(db, "select pgque.current_event_table('q')")
    rotate(db)
    rotate(db)
    db.execute(f"insert into {stale} (ev_data) values ('late')".encode())
    rotate_often(db)
    assert drain(db) == ["late"]


def test_rotation_does_not_wait_for_a_reader_of_the_oldest_table(
    db: Connection, another: Another
) -> None:
    make_queue(db, **AT_ONCE)
    reader = another()
    with reader.transaction():
        value(reader, f"select count(*) from pgque.event_{queue_id(db)}")
        assert step1(db) == 0


def test_two_rotations_at_once_rotate_once(db: Connection, another: Another) -> None:
    make_queue(db, **AT_ONCE)
    send(db, "a")
    rival = another()
    with rival.transaction():
        assert (step1(rival), step1(db)) == (1, 0)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize(
    "call",
    [
        "pgque.maint()",
        "pgque.maint_rotate_tables_step1('q')",
        "pgque.maint_compact_positions()",
        "pgque.maint_compact_ticks()",
    ],
)
def test_what_truncates_refuses_an_old_snapshot(db: Connection, level: str, call: str) -> None:
    make_queue(db)
    db.execute(f"begin isolation level {level}".encode())
    with refused("PQ013", level):
        value(db, f"select {call}")


def test_event_tables_hold_no_dead_tuples_after_a_load(db: Connection) -> None:
    make_queue(db)
    for _ in range(5):
        send(db, *[str(n) for n in range(50)])
        tick(db)
        batch = next_batch(db)
        ids = rows(db, "select ev_id from pgque.get_batch_events(%s) limit 5", batch)
        value(db, "select pgque.nack_batch(%s, %s, '0')", batch, [row[0] for row in ids])
        finish(db, batch)
        rotate(db)
        value(db, "select pgque.maint()")
        value(db, "select pgque.ticker()")
    value(db, "select pg_stat_force_next_flush()::text")
    assert rows(
        db,
        "select sum(n_dead_tup), sum(n_tup_upd), sum(n_tup_del), sum(n_tup_ins) > 200"
        " from pg_stat_all_tables where relname ~ '^event_'",
    ) == [(0, 0, 0, True)]


def test_maint_does_everything_that_is_due(db: Connection) -> None:
    make_queue(db, **AT_ONCE)
    batch = open_batch(db, "broken")
    value(
        db,
        "select pgque.nack_batch(%s, array(select ev_id from pgque.get_batch_events(%s)), '0')",
        batch,
        batch,
    )
    finish(db, batch)
    bloat_ticks(db, 1200)
    drain(db)
    done = [value(db, "select pgque.maint()") for _ in range(2)]
    tick(db)
    kept = value(db, "select count(*) from pgque.tick")
    assert (done[0] >= 2, kept < 10, drain(db)) == (True, True, ["broken"])


class TestASnapshotOlderThanWhatConsumersDid:
    """A dump takes its snapshot first and its locks later; TRUNCATE empties tables for both."""

    @pytest.fixture
    def old(self, db: Connection, another: Another) -> Connection:
        """A transaction that sees the event unread, which is consumed by now."""
        make_queue(db, **AT_ONCE)
        send(db, "a")
        tick(db)
        rotate(db)
        rotate(db)
        holder = another()
        holder.execute("begin isolation level repeatable read")
        value(holder, "select pg_current_snapshot()::text")
        drain(db)
        return holder

    def test_keeps_its_events_until_it_ends(self, db: Connection, old: Connection) -> None:
        rotate_often(db)
        assert stored_payloads(old) == {"a"}
        old.rollback()
        rotate_often(db)
        assert stored_payloads(db) == set()

    def test_is_waited_for_no_longer_than_the_patience(
        self, db: Connection, old: Connection
    ) -> None:
        value(db, "select pgque.set_snapshot_patience('0')::text")
        rotate_often(db)
        assert stored_payloads(old) == set()

    def test_lets_rotation_go_by_what_was_consumed_before_it(
        self, db: Connection, old: Connection, another: Another
    ) -> None:
        rotate(db)
        old.rollback()
        newer = another()
        newer.execute("begin isolation level repeatable read")
        value(newer, "select pg_current_snapshot()::text")
        rotate_often(db)
        assert stored_payloads(db) == set()

    def test_is_not_waited_for_anew_because_a_consumer_registers(
        self, db: Connection, old: Connection, another: Another
    ) -> None:
        rotate(db)
        newer = another()
        newer.execute("begin isolation level repeatable read")
        value(newer, "select pg_current_snapshot()::text")
        value(db, "select pgque.register_consumer('q', 'new')")
        old.rollback()
        rotate_often(db)
        assert stored_payloads(db) == set()

    def test_does_not_let_go_what_a_new_consumer_needs(
        self, db: Connection, old: Connection
    ) -> None:
        rotate(db)
        value(db, "select pgque.register_consumer_at('q', 'new', 1)")
        old.rollback()
        rotate_often(db)
        assert payloads(db, next_batch(db, consumer="new")) == ["a"]

    def test_is_waited_for_although_rotation_last_looked_long_ago(
        self, db: Connection, another: Another
    ) -> None:
        """Longer ago than the patience, as with the default rotation period."""
        make_queue(db, **AT_ONCE)
        send(db, "a")
        tick(db)
        rotate_often(db, 2)
        db.execute("update pgque.rotation_floor set noted_at = now() - interval '3 hours'")
        old = another()
        old.execute("begin isolation level repeatable read")
        value(old, "select pg_current_snapshot()::text")
        drain(db)
        rotate_often(db)
        assert stored_payloads(old) == {"a"}
        old.rollback()
        rotate_often(db)
        assert stored_payloads(db) == set()

    def test_is_waited_for_after_a_consumer_went_back_and_caught_up(
        self, db: Connection, another: Another
    ) -> None:
        make_queue(db, **AT_ONCE)
        send(db, "a")
        tick(db)
        drain(db)
        old = another()
        old.execute("begin isolation level repeatable read")
        value(old, "select pg_current_snapshot()::text")
        assert rotate(db) == 0  # it notes where the consumer stands
        old.rollback()
        value(db, "select pgque.register_consumer_at('q', 'c', 1)")
        old.execute("begin isolation level repeatable read")
        value(old, "select pg_current_snapshot()::text")
        drain(db)
        rotate_often(db)
        assert stored_payloads(old) == {"a"}
        old.rollback()
        rotate_often(db)
        assert stored_payloads(db) == set()
