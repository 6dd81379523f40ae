"""Compaction of ticks and positions: it leaves no dead tuple and takes nothing that is needed."""

import pytest

from tests.support.queues.halves import catch_up
from tests.support.queues.sql import Connection, refused

POSITIONS = "select count(*) from pgque.position_log"
TICKS = "select count(*) from pgque.tick"


class TestPositions:
    def test_one_remains_for_each_subscription(self, db: Connection) -> None:
        columns = "sub_id, sub_last_tick, sub_active, sub_batch, sub_next_tick, lease_owner"
        sql = f"select {columns} from pgque.subscription order by sub_id"
        db.make_queue(consumers=("a", "b"))
        before = db.rows(sql)
        assert (db.compact_positions(), db.rows(sql)) == (6000, before)
        db.empty_halves()
        assert db.value(POSITIONS) == 2
        db.bloat_positions()
        db.value("select pgque.unregister_consumer('q', 'a')")
        db.value("select pgque.maint_compact_positions()")
        db.empty_halves()
        assert db.value(POSITIONS) == 1
        for log in ("position", "tick"):  # a short one is left alone
            assert db.value(f"select pgque.maint_compact_{log}s()") == 0
        with refused("PQ005", "counter"):
            db.value("select pgque.maint_empty_half('counter')")

    def test_a_log_that_is_read_is_compacted_and_emptied_the_next_time(self, q: Connection) -> None:
        user = q.another()
        with user.transaction():
            user.value("select count(*) from pgque.subscription")
            assert q.compact_positions() == 3000
            q.empty_halves()
            assert q.value(POSITIONS) > 3000
        q.empty_halves()
        assert q.value(POSITIONS) == 1

    def test_a_batch_that_is_the_first_row_of_its_half_is_finished_once(
        self, q: Connection
    ) -> None:
        batch = q.open_batch("a")
        assert [q.compact_positions() > 0 for _ in range(2)] == [True, True]
        assert q.next_batch() == batch
        q.finish(batch)
        assert q.next_batch() is None

    def test_a_batch_that_was_claimed_on_the_second_half_is_finished_there(
        self, q: Connection
    ) -> None:
        batch = q.open_batch("a")
        assert q.compact_positions() > 0
        claim = "select (pgque.claim_batch('q', 'c', 'me', '1 microsecond')).batch_id"
        assert [q.value(claim) for _ in range(2)] == [batch, batch]
        q.finish(batch)
        assert q.value(claim) is None


class TestTicks:
    def test_the_last_two_of_a_queue_without_consumers_are_kept_and_counted_from(
        self, bare: Connection
    ) -> None:
        bare.bloat_ticks()
        newest = bare.last_tick()
        user = bare.another()
        with user.transaction():
            user.value(TICKS)  # to read them holds nothing up
            assert bare.compact_ticks() > 0
        assert bare.rows("select tick_id from pgque.tick order by 1") == [(newest - 1,), (newest,)]
        assert bare.tick() == newest + 1

    def test_those_of_dropped_queues_go(self, db: Connection) -> None:
        db.make_queue("gone", consumers=())
        db.make_queue()
        db.bloat_ticks(queue="gone")
        db.value("select pgque.drop_queue('gone')")
        db.compact_ticks()
        assert db.value(TICKS) == 1

    def test_one_that_is_not_committed_holds_the_switch_back(self, bare: Connection) -> None:
        bare.bloat_ticks()
        ticker = bare.another()
        with ticker.transaction():
            ticker.tick()
            assert bare.compact_ticks() == 0
        newest = bare.last_tick()
        assert bare.compact_ticks() > 0
        assert (bare.last_tick(), bare.tick()) == (newest, newest + 1)

    def test_a_queue_that_is_created_after_it_keeps_its_first_tick(self, q: Connection) -> None:
        q.bloat_ticks(2100)
        q.value("select pgque.register_consumer_at('q', 'c', %s)", q.last_tick())
        assert q.compact_ticks() > 0
        q.make_queue("new")
        for _ in range(2):
            q.empty_halves()
        q.send("a", queue="new")
        assert q.received("new") == ["a"]

    def test_those_since_the_copy_stay_whichever_half_the_positions_are_on(
        self, q: Connection
    ) -> None:
        q.bloat_ticks(2100)
        catch_up(q, "c")
        assert q.compact_positions() > 0
        assert q.value("select pgque.maint_copy_ticks()") == 1
        q.publish("a")
        assert q.compact_ticks() == 1
        q.empty_halves()
        assert q.drain() == ["a"]


class TestATransactionOlderThanThePatience:
    @pytest.fixture
    def outdated(self, db: Connection) -> Connection:
        db.make_queue(consumers=("c", "other"))
        batch = db.open_batch("a")
        old = db.another().hold_snapshot()
        db.finish(batch)
        db.bloat_ticks(2100)
        for consumer in ("c", "other"):
            db.value("select pgque.register_consumer_at('q', %s, %s)", consumer, db.last_tick())
        db.value("select pgque.set_snapshot_patience('0')")
        assert db.compact_positions() > 0
        assert db.compact_ticks() > 0
        db.empty_halves()
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
            "claim_slot('q', 'c', 0, 'w')",
            "get_consumer_info('q', 'c')",
            "unregister_consumer('q', 'c')",
            "register_consumer('q', 'new')",
            "get_queue_info('q')",
            "otel_metrics()",
            "queue_stats()",
            "consumer_stats()",
            "queue_health()",
            "in_flight('q')",
            "stuck_consumers()",
            "throughput('q', '1 hour', '1 minute')",
            "error_rate('q', '1 hour', '1 minute')",
            "ticker()",
            "create_queue('new')",
        ):
            locks = call in ("ticker()", "create_queue('new')")
            hint = "" if locks else "roll back and try again"
            with refused("40001", hint), outdated.transaction():
                outdated.execute(f"select * from pgque.{call}".encode())

    def test_does_not_take_ticks_that_it_lacks_for_no_events(self, q: Connection) -> None:
        batch = q.open_batch("a")
        old = q.another().hold_snapshot()
        q.make_queue("other", consumers=())
        q.bloat_ticks(2100, "other")
        q.value("select pgque.set_snapshot_patience('0')")
        assert q.compact_ticks() > 0
        q.empty_halves()
        for call in (
            f"get_batch_events({batch})",
            f"finished_before({batch}, 1)",
            "tick_fingerprint('q', 2)",
        ):
            with refused("40001", "roll back and try again"), old.transaction():
                old.rows(f"select pgque.{call}")

    def test_may_drop_a_queue(self, db: Connection, outdated: Connection) -> None:
        assert outdated.value("select pgque.drop_queue('q', true)") == 1
        outdated.execute("commit")
        assert db.rows("select * from pgque.get_queue_info()") == []
