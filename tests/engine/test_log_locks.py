"""Locks of maintenance: nobody waits long for one, and none is out of reach for ever."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.queues import (
    Connection,
    bloat_positions,
    bloat_ticks,
    drain,
    make_queue,
    open_batch,
    refused,
    rows,
    send,
    tick,
    value,
)

Another = Callable[[], Connection]
STATE = (
    "select left_at is not null, tried_at is not null from pgque.log_rotation where log_name = %s"
)


def leave_a_half(db: Connection) -> None:
    """Positions in half 1, and half 0 to be emptied at once."""
    make_queue(db)
    open_batch(db, "a")
    value(db, "select pgque.set_snapshot_patience('0')::text")
    bloat_positions(db)
    assert value(db, "select pgque.maint_compact_positions()") > 0


def poll(reader: Connection) -> None:
    """A transaction that keeps the logs locked until it ends."""
    reader.execute("begin")
    rows(reader, "select * from pgque.get_consumer_info('q', 'c')")


def test_attempts_that_failed_for_long_wait_longer(
    db: Connection, another: Another, background: ThreadPoolExecutor
) -> None:
    leave_a_half(db)
    reader = another()
    poll(reader)
    assert value(db, "select pgque.maint_empty_half('position')") == 0
    assert rows(db, STATE, "position") == [(True, True)]
    assert value(db, "show lock_timeout") == "1min"  # of this connection, as it was

    db.execute("update pgque.log_rotation set tried_at = now() - interval '11 minutes'")
    emptying = background.submit(value, db, "select pgque.maint_empty_half('position')")
    time.sleep(0.1)
    reader.execute("commit")
    assert emptying.result() == 1
    assert rows(db, STATE, "position") == [(False, False)]


def test_after_a_copy_that_was_rolled_back_nobody_waits_for_the_next(
    db: Connection, another: Another
) -> None:
    make_queue(db)
    bloat_ticks(db, 3000)
    value(db, "select pgque.register_consumer_at('q', 'c', (select max(tick_id) from pgque.tick))")
    with db.transaction(force_rollback=True):
        assert value(db, "select pgque.maint_copy_ticks()") == 1
    other = another()
    other.execute("set lock_timeout = '1s'")
    done = 0
    for _ in range(4):
        db.execute("begin")
        done += value(db, "select pgque.maint_copy_ticks()")
        rows(other, "select * from pgque.get_consumer_info('q', 'c')")
        value(other, "select (pgque.claim_batch('q', 'c', 'me')).batch_id")
        db.execute("commit")
        value(db, "select pgque.maint_empty_half('tick')")
    assert done == 1


def test_closing_a_queue_counts_in_a_session_of_replication(
    db: Connection, another: Another
) -> None:
    make_queue(db)
    replica = another()
    replica.execute("set session_replication_role = replica")
    value(replica, "select pgque.set_queue_config('q', 'disable_insert', 'true')")
    with refused("PQ006"):
        send(db, "closed")
    value(replica, "select pgque.set_queue_config('q', 'disable_insert', 'false')")
    send(db, "open")
    tick(db)
    assert drain(db) == ["open"]


class TestHealth:
    @pytest.fixture
    def overdue(self, db: Connection) -> Connection:
        make_queue(db, rotation_period="1 hour")
        send(db, "a")
        db.execute("update pgque.queue set queue_switch_time = now() - interval '3 hours'")
        return db

    def detail(self, db: Connection) -> str:
        sql = "select detail from pgque.rotation_health() where queue_name = 'q'"
        found: str = value(db, sql)
        return found

    def test_names_the_pause_that_holds_up_rotation(self, overdue: Connection) -> None:
        value(overdue, "select pgque.pause_queue('q')::text")
        assert "resume_queue" in self.detail(overdue)

    def test_names_the_session_whose_snapshot_rotation_waits_for(
        self, overdue: Connection, another: Another
    ) -> None:
        old = another()
        old.execute("begin isolation level repeatable read")
        value(old, "select pg_current_snapshot()::text")
        value(overdue, "select pgque.maint_rotate_tables_step1('q')")
        assert f"session {old.info.backend_pid}" in self.detail(overdue)

    def test_does_not_expect_history_to_rotate_each_minute(self, db: Connection) -> None:
        make_queue(db)
        db.execute(
            "insert into pgque.history (queue_id, counted_at, event_seq)"
            " select q.queue_id, now() - n * interval '1 second', n"
            " from pgque.queue q, generate_series(1, 250000) n"
        )
        db.execute("update pgque.config set installed_at = now() - interval '2 days'")
        ((name, status, detail),) = rows(db, "select 'log', status, detail from pgque.log_health()")
        assert (name, status) == ("log", "ok"), detail
