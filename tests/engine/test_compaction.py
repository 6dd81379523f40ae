"""Compaction of ticks and positions: it leaves no dead tuple and takes nothing that is needed."""

import pytest

from tests.support.queues import (
    Connection,
    bloat_positions,
    bloat_ticks,
    compact_positions,
    compact_ticks,
    drain,
    empty_halves,
    events,
    finish,
    last_tick,
    make_queue,
    next_batch,
    open_batch,
    refused,
    rows,
    send,
    tick,
    value,
)
from tests.support.races import Another

POSITIONS = "select count(*) from pgque.position_log"
TICKS = "select count(*) from pgque.tick"


class TestPositions:
    def test_one_remains_for_each_subscription(self, db: Connection) -> None:
        columns = "sub_id, sub_last_tick, sub_active, sub_batch, sub_next_tick, lease_owner"
        sql = f"select {columns} from pgque.subscription order by sub_id"
        make_queue(db, consumers=("a", "b"))
        before = rows(db, sql)
        assert (compact_positions(db), rows(db, sql)) == (6000, before)
        empty_halves(db)
        assert value(db, POSITIONS) == 2
        bloat_positions(db)
        value(db, "select pgque.unregister_consumer('q', 'a')")
        value(db, "select pgque.maint_compact_positions()")
        empty_halves(db)
        assert value(db, POSITIONS) == 1

    def test_a_short_log_is_left_alone(self, db: Connection) -> None:
        make_queue(db)
        for _ in range(5):
            finish(db, open_batch(db, "a"))
        assert value(db, "select pgque.maint_compact_positions()") == 0

    def test_an_open_batch_and_its_lease_are_kept(self, db: Connection) -> None:
        make_queue(db)
        send(db, "a")
        tick(db)
        sql = "select batch_id, epoch from pgque.claim_batch('q', 'c', 'me')"
        ((batch, epoch),) = rows(db, sql)
        before = events(db, batch)
        compact_positions(db)
        assert events(db, batch) == before
        assert value(db, "select pgque.ack_batch(%s, 'me', %s)", batch, epoch) == 1

    def test_no_dead_position_is_left_under_a_held_snapshot(
        self, db: Connection, another: Another
    ) -> None:
        make_queue(db)
        holder = another()
        holder.execute("begin isolation level repeatable read")
        value(holder, "select pg_current_snapshot()::text")
        compact_positions(db)
        value(db, "select pg_stat_force_next_flush()::text")
        assert value(db, "select pg_relation_size('pgque.position_log_1')") == 8192

    def test_a_log_that_is_read_is_compacted_and_emptied_the_next_time(
        self, db: Connection, another: Another
    ) -> None:
        make_queue(db)
        user = another()
        with user.transaction():
            value(user, "select count(*) from pgque.subscription")
            assert compact_positions(db) == 3000
            empty_halves(db)
            assert value(db, POSITIONS) > 3000
        empty_halves(db)
        assert value(db, POSITIONS) == 1

    def test_one_that_is_not_committed_holds_compaction_back(
        self, db: Connection, another: Another
    ) -> None:
        make_queue(db)
        send(db, "a")
        tick(db)
        bloat_positions(db)
        consumer = another()
        with consumer.transaction():
            batch = next_batch(consumer)
            assert value(db, "select pgque.maint_compact_positions()") == 0
        assert next_batch(db) == batch


class TestTicks:
    def test_those_that_a_lagging_consumer_needs_are_kept(self, db: Connection) -> None:
        make_queue(db, consumers=("fast", "slow"))
        bloat_ticks(db, 2100)
        drain(db, consumer="fast")
        value(db, "select pgque.register_consumer_at('q', 'slow', 2000)")
        compact_ticks(db)
        send(db, "a")
        tick(db)
        assert value(db, "select min(tick_id) from pgque.tick") == 2000
        assert drain(db, consumer="slow") == ["a"]

    def test_the_last_two_of_a_queue_without_consumers_are_kept_and_counted_from(
        self, db: Connection, another: Another
    ) -> None:
        make_queue(db, consumers=())
        bloat_ticks(db)
        newest = last_tick(db)
        user = another()
        with user.transaction():
            value(user, TICKS)  # to read them holds nothing up
            assert compact_ticks(db) > 0
        assert rows(db, "select tick_id from pgque.tick order by 1") == [(newest - 1,), (newest,)]
        assert tick(db) == newest + 1

    def test_those_of_dropped_queues_go(self, db: Connection) -> None:
        make_queue(db, "gone", consumers=())
        make_queue(db)
        bloat_ticks(db, queue="gone")
        value(db, "select pgque.drop_queue('gone')")
        compact_ticks(db)
        assert value(db, TICKS) == 1

    def test_few_are_left_alone(self, db: Connection) -> None:
        make_queue(db, consumers=())
        bloat_ticks(db, 900)
        assert compact_ticks(db) == 0

    def test_one_that_is_not_committed_holds_the_switch_back(
        self, db: Connection, another: Another
    ) -> None:
        make_queue(db, consumers=())
        bloat_ticks(db)
        ticker = another()
        with ticker.transaction():
            tick(ticker)
            assert compact_ticks(db) == 0
        newest = last_tick(db)
        assert compact_ticks(db) > 0
        assert (last_tick(db), tick(db)) == (newest, newest + 1)


class TestATransactionOlderThanThePatience:
    @pytest.fixture
    def outdated(self, db: Connection, another: Another) -> Connection:
        make_queue(db, consumers=("c", "other"))
        batch = open_batch(db, "a")
        old = another()
        old.execute("begin isolation level repeatable read")
        value(old, "select pg_current_snapshot()::text")
        finish(db, batch)
        bloat_ticks(db, 2100)
        for consumer in ("c", "other"):
            value(db, "select pgque.register_consumer_at('q', %s, %s)", consumer, last_tick(db))
        value(db, "select pgque.set_snapshot_patience('0')")
        assert compact_positions(db) > 0
        assert compact_ticks(db) > 0
        empty_halves(db)
        return old

    def test_is_told_to_start_again(self, outdated: Connection) -> None:
        for call in (
            "next_batch('q', 'c')",
            "next_batch_custom('q', 'c', null, null, null)",
            "claim_batch('q', 'c', 'me')",
            "receive('q', 'c')",
            "finish_batch(1)",
            "get_batch_events(1)",
            "get_batch_info(1)",
            "batch_read_plan(1, 2)",
            "nack_batch(1, '{1}')",
            "ack_batch(1, 'me', 1)",
            "get_lease_info('q', 'c')",
            "get_consumer_info('q', 'c')",
            "unregister_consumer('q', 'c')",
            "register_consumer('q', 'new')",
            "ticker()",
        ):
            hint = "" if call == "ticker()" else "roll back and try again"
            with refused("40001", hint), outdated.transaction():
                outdated.execute(f"select * from pgque.{call}".encode())

    def test_may_drop_a_queue(self, db: Connection, outdated: Connection) -> None:
        assert value(outdated, "select pgque.drop_queue('q', true)") == 1
        outdated.execute("commit")
        assert rows(db, "select * from pgque.get_queue_info()") == []
