"""Compactions, snapshots older than them, and everybody else: nobody loses a row, nobody waits."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.queues.halves import catch_up, compact, is_one_half_empty
from tests.support.queues.races import draw_next, race
from tests.support.queues.sql import Connection, refused, warnings_of

ACK = "select pgque.ack_batch(%s, 'me', %s)"


def empty_half(db: Connection, log: str) -> int:
    return db.value("select pgque.maint_empty_half(%s)", log)


def many_ticks(db: Connection) -> None:
    """More than are needed."""
    db.make_queue()
    db.bloat_ticks(2100)
    catch_up(db, "c")


class TestASinkInAnOlderTransaction:
    """It works on its batch in a transaction that is older than a compaction."""

    @pytest.fixture
    def claimed(self, db: Connection) -> tuple[int, int]:
        db.make_queue()
        db.publish("a", "b")
        sql = "select batch_id, epoch from pgque.claim_batch('q', 'c', 'me', '1 hour')"
        (claimed,) = db.rows(sql)
        return claimed

    def compact(self, db: Connection) -> None:
        db.make_queue("other", consumers=())
        db.bloat_ticks(2100, "other")
        assert db.compact_positions() > 0
        assert db.compact_ticks() > 0

    def test_reads_its_batch_and_acks_it_in_its_next_transaction(
        self, db: Connection, claimed: tuple[int, int]
    ) -> None:
        db.publish("c")
        sink = db.another().hold_snapshot()
        self.compact(db)
        assert sink.payloads(claimed[0]) == ["a", "b"]
        with refused("40001"):
            sink.value(ACK, *claimed)
        sink.execute("rollback")
        sink = db.another().hold_snapshot("serializable")
        sink.value(ACK, *claimed)
        batch = sink.next_batch()
        assert sink.payloads(batch) == ["c"]
        sink.finish(batch)
        sink.execute("commit")
        assert db.next_batch() is None

    def test_acks_if_it_began_with_a_renewal_for_which_the_compaction_waits(
        self, db: Connection, claimed: tuple[int, int]
    ) -> None:
        sink = db.another().hold_snapshot()
        sink.value("select pgque.renew_batch(%s, 'me', %s)::text", *claimed)
        db.bloat_positions()
        assert db.value("select pgque.maint_compact_positions()") == 0
        sink.value(ACK, *claimed)
        sink.execute("commit")
        assert db.next_batch() is None

    @pytest.mark.parametrize("following", ["", "cd"])
    @pytest.mark.parametrize("is_finished_first", [True, False])
    def test_cannot_ack_what_was_finished(
        self, db: Connection, claimed: tuple[int, int], following: str,
        is_finished_first: bool,
    ) -> None:  # fmt: skip
        """What it writes would come before the newest position, and change nothing."""
        sink = db.another().hold_snapshot()
        if not is_finished_first:
            self.compact(db)
        db.value(ACK, *claimed)
        for text in following:
            db.finish(db.open_batch(text))
        if is_finished_first:
            self.compact(db)
        with refused("40001"):
            sink.value(ACK, *claimed)


class TestNobodyWaits:
    def test_for_a_compaction_of_ticks_that_is_not_committed(self, q: Connection) -> None:
        batch = q.open_batch("a")
        q.make_queue("other", consumers=())
        q.bloat_ticks(2100, "other")
        compaction = q.another()
        with compaction.transaction():
            assert compaction.compact_ticks() > 0
            q.execute("set lock_timeout = '1s'")
            assert q.payloads(batch) == ["a"]
            q.finish(batch)
            assert q.next_batch() is None

    def test_to_read_during_a_compaction_of_positions_that_is_not_committed(
        self, q: Connection
    ) -> None:
        batch = q.open_batch("a")
        q.rotate()
        q.bloat_positions()
        compaction = q.another()
        with compaction.transaction():
            assert compaction.value("select pgque.maint_compact_positions()") > 0
            q.execute("set lock_timeout = '1s'")
            assert q.payloads(batch) == ["a"]
            assert q.value("select sum(batch_events) from pgque.batch_read_plan(%s, 2)", batch) == 1
            assert q.value("select queue_name from pgque.get_batch_info(%s)", batch) == "q"
            assert q.value("select count(*) from pgque.get_consumer_info()") == 1
            assert q.value("select pgque.maint_rotate_tables_step1('q')") == 1
        assert q.payloads(batch) == ["a"]

    def test_for_long_but_one_attempt_in_many_waits_longer(
        self, q: Connection, background: ThreadPoolExecutor
    ) -> None:
        q.open_batch("a")
        q.value("select pgque.set_snapshot_patience('0')::text")
        q.bloat_positions()
        assert q.value("select pgque.maint_compact_positions()") > 0
        reader = q.another()
        with reader.transaction():  # keeps the logs locked until it ends
            reader.rows("select * from pgque.get_consumer_info('q', 'c')")
            draw_next(q, 0.1, 1)
            assert empty_half(q, "position") == 0
            assert q.value("show lock_timeout") == "1min"  # of this connection, as it was

            draw_next(q, 0, 0.01)
            emptying = background.submit(empty_half, q, "position")
            time.sleep(0.1)
        assert emptying.result() == 1

    def test_but_for_the_end_of_a_switch(self, q: Connection) -> None:
        batch = q.open_batch("a")
        dropped, waiting = race(q, Connection.compact_positions, lambda two: two.finish(batch))
        assert dropped > 0
        waiting.result()
        assert q.next_batch() is None
        q.empty_halves()
        assert q.next_batch() is None


class TestTheHalfThatWasLeft:
    @pytest.mark.parametrize("log", ["tick", "position"])
    def test_is_emptied_by_the_next_maintenance_and_then_the_current_one_again(
        self, db: Connection, log: str
    ) -> None:
        """Frequent statements look into the first half alone while that is current."""
        half = "select half from pgque.log where log_name = %s"
        db.make_queue()
        with db.transaction():
            compact(db)
            assert empty_half(db, log) == 0
        assert not is_one_half_empty(db, log)
        db.value(f"select pgque.maint_compact_{log}s()")
        assert db.value(half, log) == 1
        assert empty_half(db, log) == 1
        assert is_one_half_empty(db, log)
        db.value(f"select pgque.maint_compact_{log}s()")
        assert db.value(half, log) == 0
        assert db.drain() == []
        db.publish("a")
        assert db.drain() == ["a"]

    @pytest.mark.parametrize("log", ["tick", "position"])
    def test_waits_for_a_snapshot_that_may_read_it_and_no_other(
        self, q: Connection, log: str
    ) -> None:
        idle, holder = q.another().hold_snapshot("read committed"), q.another().hold_snapshot()
        compact(q)
        assert (empty_half(q, log), is_one_half_empty(q, log)) == (0, False)
        later = q.another().hold_snapshot()
        holder.execute("commit")
        assert empty_half(q, log) == 1
        idle.execute("commit")
        later.execute("commit")

    def test_goes_all_the_same_when_the_patience_is_over(self, q: Connection) -> None:
        holder = q.another().hold_snapshot()
        compact(q)
        q.value("select pgque.set_snapshot_patience('0')::text")
        assert empty_half(q, "position") == 1
        with refused("40001", "roll back and try again"):
            holder.next_batch()

    def test_keeps_a_consumer_who_registered_with_an_older_snapshot(self, q: Connection) -> None:
        late = q.another().hold_snapshot()
        q.compact_positions()
        late.value("select pgque.register_consumer('q', 'late')")
        late.execute("commit")
        q.publish("a")
        for _ in range(3):
            empty_half(q, "position")
        assert is_one_half_empty(q, "position")
        assert q.drain(consumer="late") == ["a"]

    def test_is_kept_for_a_snapshot_from_before_such_a_consumer_was_moved(
        self, q: Connection
    ) -> None:
        late = q.another().hold_snapshot()
        q.compact_positions()
        late.value("select pgque.register_consumer('q', 'late')")
        assert empty_half(q, "position") == 0  # waits for that transaction
        late.execute("commit")
        holder = q.another().hold_snapshot()
        for _ in range(3):
            empty_half(q, "position")
        assert holder.value("select count(*) from pgque.subscription") == 2
        holder.execute("commit")
        assert empty_half(q, "position") == 1

    def test_does_not_get_a_consumer_at_a_tick_that_only_it_has(self, db: Connection) -> None:
        many_ticks(db)
        late = db.another().hold_snapshot()
        assert db.compact_ticks() > 0
        for call in (
            "register_consumer_at('q', 'late', 5)",
            "register_consumer('q', 'late', 'earliest')",
            "seek('q', 'c', '5')",
            "subscribe_slots('q', 'late', 2, '5')",
        ):
            with refused("40001"), late.transaction():
                late.rows(f"select pgque.{call}")


class TestACopyOfTicks:
    def test_that_was_rolled_back_is_made_again(self, db: Connection) -> None:
        many_ticks(db)
        with db.transaction(force_rollback=True):
            assert db.value("select pgque.maint_copy_ticks()") == 1
        assert db.value("select pgque.maint_compact_ticks()") == 0
        assert empty_half(db, "tick") == 1
        assert db.value("select pgque.maint_compact_ticks()") == 1
        assert db.open_batch("a") is not None

    def test_that_waits_is_completed(self, db: Connection) -> None:
        many_ticks(db)
        assert db.value("select pgque.maint_copy_ticks()") == 1
        db.value("select pgque.register_consumer_at('q', 'early', 2050)")
        newest = db.publish("a")
        assert db.compact_ticks() > 0
        found = db.rows("select min(tick_id), max(tick_id), count(*) from pgque.tick")
        assert found == [(2050, newest, newest - 2049)]
        assert (db.drain(), db.drain(consumer="early")) == (["a"], ["a"])

    def test_that_fails_stops_no_other_step_of_maintenance(self, db: Connection) -> None:
        many_ticks(db)
        db.execute("alter table pgque.tick_log_1 add constraint full_disk check (tick_id < 0)")
        with refused("23514", "full_disk"):  # there is nothing else to do
            db.value("select pgque.maint()")
        db.send("a")
        db.value("select pgque.set_queue_config('q', 'rotation_period', '1 microsecond')")
        warnings = warnings_of(db)
        assert db.value("select pgque.maint()") > 0
        assert db.value("select queue_cur_table from pgque.queue") == 1
        assert any("full_disk" in text for text in warnings)

    def test_of_snapshots_with_thousands_of_running_transactions(self, q: Connection) -> None:
        q.bloat_ticks(2100)
        running = "select string_agg(nr::text, ',' order by nr) from generate_series(1000, 5000) nr"
        q.execute(
            f"update pgque.tick_log set tick_snapshot = ('1000:5001:' || ({running}))::pg_snapshot"
            " where tick_id % 10 = 0".encode()
        )
        q.bloat_ticks(1000)
        q.value("select pgque.register_consumer_at('q', 'c', %s)", 3000)
        for _ in range(3):
            q.value("select pgque.maint()")
        assert q.rows("select min(tick_id), max(tick_id) from pgque.tick") == [(3000, 3101)]
        q.publish("a")
        assert q.drain()[-1:] == ["a"]
