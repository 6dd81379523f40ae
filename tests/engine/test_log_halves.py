"""Snapshots older than a compaction, and everybody else: nobody loses a row, nobody waits."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from tests.support.halves import catch_up, compact, is_one_half_empty
from tests.support.queues import (
    Connection,
    bloat_ticks,
    compact_positions,
    compact_ticks,
    drain,
    empty_halves,
    finish,
    make_queue,
    next_batch,
    open_batch,
    payloads,
    refused,
    rows,
    send,
    tick,
    value,
    wait_until_blocked,
)

Another = Callable[[], Connection]
_numbers = count(1)


@pytest.fixture
def old(another: Another) -> Callable[[], Connection]:
    """Opens a transaction that has a snapshot and has read nothing yet."""

    def begin(level: str = "repeatable read") -> Connection:
        holder = another()
        holder.execute(f"begin isolation level {level}".encode())
        value(holder, "select pg_current_snapshot()::text")
        return holder

    return begin


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
class TestASinkInAnOlderTransaction:
    """It works on its batch in a transaction that is older than a compaction."""

    @pytest.fixture
    def claimed(self, db: Connection) -> tuple[int, int]:
        make_queue(db)
        send(db, "a", "b")
        tick(db)
        ((batch, epoch),) = rows(
            db, "select batch_id, epoch from pgque.claim_batch('q', 'c', 'me', '1 hour')"
        )
        return batch, epoch

    def compact(self, db: Connection) -> None:
        make_queue(db, "other", consumers=())
        bloat_ticks(db, 2100, "other")
        assert compact_positions(db) > 0
        assert compact_ticks(db) > 0

    def test_reads_and_acks_its_batch(
        self, db: Connection, old: Callable[..., Connection], claimed: tuple[int, int], level: str
    ) -> None:
        sink = old(level)
        self.compact(db)
        read = payloads(sink, claimed[0])
        value(sink, "select pgque.ack_batch(%s, 'me', %s)", *claimed)
        with refused("PQ003"):
            finish(sink, claimed[0])
        sink.execute("rollback")
        sink = old(level)
        value(sink, "select pgque.ack_batch(%s, 'me', %s)", *claimed)
        sink.execute("commit")
        assert (read, next_batch(db)) == (["a", "b"], None)

    def test_takes_the_next_batch_after_its_ack(
        self, db: Connection, old: Callable[..., Connection], claimed: tuple[int, int], level: str
    ) -> None:
        send(db, "c")
        tick(db)
        sink = old(level)
        self.compact(db)
        value(sink, "select pgque.ack_batch(%s, 'me', %s)", *claimed)
        batch = next_batch(sink)
        read = payloads(sink, batch)
        finish(sink, batch)
        sink.execute("commit")
        assert (read, next_batch(db)) == (["c"], None)

    def test_cannot_ack_what_was_finished_before_the_compaction(
        self, db: Connection, old: Callable[..., Connection], claimed: tuple[int, int], level: str
    ) -> None:
        sink = old(level)
        value(db, "select pgque.ack_batch(%s, 'me', %s)", *claimed)
        self.compact(db)
        with refused("40001"):
            value(sink, "select pgque.ack_batch(%s, 'me', %s)", *claimed)

    def test_cannot_ack_once_the_next_batches_are_finished_too(
        self, db: Connection, old: Callable[..., Connection], claimed: tuple[int, int], level: str
    ) -> None:
        """What the sink writes would come before the newest position, and change nothing."""
        sink = old(level)
        value(db, "select pgque.ack_batch(%s, 'me', %s)", *claimed)
        for text in ("c", "d"):
            finish(db, open_batch(db, text))
        self.compact(db)
        with refused("40001"):
            value(sink, "select pgque.ack_batch(%s, 'me', %s)", *claimed)

    def test_cannot_ack_what_was_finished_after_the_compaction(
        self, db: Connection, old: Callable[..., Connection], claimed: tuple[int, int], level: str
    ) -> None:
        sink = old(level)
        self.compact(db)
        value(db, "select pgque.ack_batch(%s, 'me', %s)", *claimed)
        with refused("40001"):
            value(sink, "select pgque.ack_batch(%s, 'me', %s)", *claimed)

    def test_finishes_a_batch_without_a_lease(
        self, db: Connection, old: Callable[..., Connection], level: str
    ) -> None:
        make_queue(db)
        batch = open_batch(db, "a")
        sink = old(level)
        self.compact(db)
        finish(sink, batch)
        sink.execute("commit")
        assert next_batch(db) is None

    def test_acks_a_page_of_a_slot(
        self, db: Connection, old: Callable[..., Connection], level: str
    ) -> None:
        make_queue(db, consumers=())
        value(db, "select pgque.subscribe_slot('q', 'p', 0, 1)::text")
        value(db, "select pgque.send('q', 't', 'a', 'key')")
        tick(db)
        value(db, "select epoch from pgque.claim_slot('q', 'p', 0, 'me', '1 hour') epoch")
        receive = "select payload from pgque.receive_partitioned('q', 'p', 0, 1, 'me', 10)"
        assert rows(db, receive) == [("a",)]
        sink = old(level)
        self.compact(db)
        value(sink, "select pgque.ack_partitioned('q', 'p', 0, 1, 'me')::text")
        sink.execute("commit")
        assert rows(db, receive) == []


class TestNobodyWaits:
    def test_a_consumer_works_while_a_compaction_of_ticks_is_not_committed(
        self, db: Connection, another: Another
    ) -> None:
        make_queue(db)
        batch = open_batch(db, "a")
        make_queue(db, "other", consumers=())
        bloat_ticks(db, 2100, "other")
        compaction = another()
        compaction.execute("begin")
        assert compact_ticks(compaction) > 0
        db.execute("set lock_timeout = '1s'")
        assert payloads(db, batch) == ["a"]
        finish(db, batch)
        assert next_batch(db) is None
        compaction.execute("commit")


class TestTheHalfThatWasLeft:
    @pytest.mark.parametrize("log", ["tick", "position"])
    def test_is_emptied_by_the_next_maintenance(self, db: Connection, log: str) -> None:
        make_queue(db)
        with db.transaction():
            compact(db)
            assert value(db, "select pgque.maint_empty_half(%s)", log) == 0
        assert not is_one_half_empty(db, log)
        assert value(db, "select pgque.maint_empty_half(%s)", log) == 1
        assert is_one_half_empty(db, log)

    @pytest.mark.parametrize("log", ["tick", "position"])
    def test_waits_for_a_snapshot_that_may_read_it(
        self, db: Connection, old: Callable[..., Connection], log: str
    ) -> None:
        make_queue(db)
        holder = old()
        compact(db)
        empty = value(db, "select pgque.maint_empty_half(%s)", log)
        assert (empty, is_one_half_empty(db, log)) == (0, False)
        holder.execute("commit")
        assert value(db, "select pgque.maint_empty_half(%s)", log) == 1

    def test_does_not_wait_for_a_transaction_that_holds_no_snapshot(
        self, db: Connection, old: Callable[..., Connection]
    ) -> None:
        make_queue(db)
        idle = old("read committed")
        compact(db)
        assert value(db, "select pgque.maint_empty_half('tick')") == 1
        idle.execute("commit")

    def test_does_not_wait_for_a_snapshot_that_came_later(
        self, db: Connection, old: Callable[..., Connection]
    ) -> None:
        make_queue(db)
        earlier = old()
        compact(db)
        assert value(db, "select pgque.maint_empty_half('tick')") == 0
        old()
        earlier.execute("commit")
        assert value(db, "select pgque.maint_empty_half('tick')") == 1

    @pytest.mark.parametrize("log", ["tick", "position"])
    def test_is_the_current_one_again_as_soon_as_it_is_empty(
        self, db: Connection, log: str
    ) -> None:
        """Frequent statements look into the first half alone while that is current."""
        make_queue(db)
        compact(db)
        half = "select half from pgque.log where log_name = %s"
        current = [value(db, half, log)]
        value(db, "select pgque.maint_rotate_metadata(%s)", log)
        current.append(value(db, half, log))
        value(db, "select pgque.maint_empty_half(%s)", log)
        value(db, "select pgque.maint_rotate_metadata(%s)", log)
        current.append(value(db, half, log))
        assert current == [1, 1, 0]
        assert drain(db) == []
        send(db, "a")
        tick(db)
        assert drain(db) == ["a"]

    def test_goes_all_the_same_when_the_patience_is_over(
        self, db: Connection, old: Callable[..., Connection]
    ) -> None:
        make_queue(db)
        holder = old()
        compact(db)
        value(db, "select pgque.set_snapshot_patience('0')::text")
        assert value(db, "select pgque.maint_empty_half('position')") == 1
        with refused("40001", "roll back and try again"):
            next_batch(holder)

    @pytest.mark.parametrize("patience", ["-1 s", None])
    def test_refuses_an_impossible_patience(self, db: Connection, patience: str | None) -> None:
        with refused("PQ005", "1 hour"):
            value(db, "select pgque.set_snapshot_patience(%s)", patience)

    def test_keeps_a_consumer_who_registered_with_an_older_snapshot(
        self, db: Connection, old: Callable[..., Connection]
    ) -> None:
        make_queue(db)
        late = old()
        compact_positions(db)
        value(late, "select pgque.register_consumer('q', 'late')")
        late.execute("commit")
        send(db, "a")
        tick(db)
        for _ in range(3):
            value(db, "select pgque.maint_empty_half('position')")
        assert is_one_half_empty(db, "position")
        assert drain(db, consumer="late") == ["a"]

    @pytest.mark.parametrize("level", ["repeatable read", "serializable"])
    @pytest.mark.parametrize(
        "call",
        [
            "pgque.register_consumer_at('q', 'late', 5)",
            "pgque.register_consumer('q', 'late', 'earliest')",
            "pgque.seek('q', 'c', '5')",
            "pgque.subscribe_slots('q', 'late', 2, '5')",
        ],
    )
    def test_does_not_get_a_consumer_at_a_tick_that_only_it_has(
        self, db: Connection, old: Callable[..., Connection], level: str, call: str
    ) -> None:
        make_queue(db)
        bloat_ticks(db, 2100)
        catch_up(db, "c")
        late = old(level)
        assert compact_ticks(db) > 0
        with refused("40001"):
            rows(late, f"select {call}")

    def test_a_copy_that_was_rolled_back_is_made_again(
        self, db: Connection, another: Another
    ) -> None:
        make_queue(db)
        bloat_ticks(db, 2100)
        catch_up(db, "c")
        with db.transaction(force_rollback=True):
            assert value(db, "select pgque.maint_copy_ticks()") == 1
        assert value(db, "select pgque.maint_compact_ticks()") == 0
        assert value(db, "select pgque.maint_empty_half('tick')") == 1
        assert value(db, "select pgque.maint_compact_ticks()") == 1
        assert open_batch(db, "a") is not None

    def test_a_copy_that_waits_is_completed(self, db: Connection) -> None:
        make_queue(db)
        bloat_ticks(db, 2100)
        catch_up(db, "c")
        assert value(db, "select pgque.maint_copy_ticks()") == 1
        value(db, "select pgque.register_consumer_at('q', 'early', 1000)")
        send(db, "a")
        newest = tick(db)
        assert compact_ticks(db) > 0
        assert rows(db, "select min(tick_id), max(tick_id), count(*) from pgque.tick") == [
            (1000, newest, newest - 999)
        ]
        assert (drain(db), drain(db, consumer="early")) == (["a"], ["a"])


def test_a_consumer_who_waited_for_a_switch_goes_on_behind_it(
    db: Connection, another: Another, background: ThreadPoolExecutor
) -> None:
    make_queue(db)
    batch = open_batch(db, "a")
    compaction = another()
    compaction.execute("begin")
    assert compact_positions(compaction) > 0
    watch = another()
    waiting = background.submit(finish, db, batch)
    wait_until_blocked(watch, db)
    compaction.execute("commit")
    waiting.result()
    assert next_batch(watch) is None
    empty_halves(watch)
    assert next_batch(watch) is None


def test_a_step_of_maintenance_that_fails_stops_no_other(db: Connection) -> None:
    make_queue(db, rotation_period="1 microsecond")
    send(db, "a")
    db.execute("alter table pgque.tick_log_1 add constraint full_disk check (tick_id < 0)")
    bloat_ticks(db, 2100)
    catch_up(db, "c")
    warnings: list[str] = []
    db.add_notice_handler(lambda notice: warnings.append(notice.message_primary or ""))
    assert value(db, "select pgque.maint()") > 0
    assert value(db, "select queue_cur_table from pgque.queue") == 1
    assert any("full_disk" in text for text in warnings)


def test_maintenance_that_can_do_nothing_fails_with_the_reason(db: Connection) -> None:
    make_queue(db)
    db.execute("alter table pgque.tick_log_1 add constraint full_disk check (tick_id < 0)")
    bloat_ticks(db, 2100)
    catch_up(db, "c")
    with refused("23514", "full_disk"):
        value(db, "select pgque.maint()")
