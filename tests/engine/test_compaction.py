"""Compaction of ticks and positions: it leaves no dead tuple and takes nothing that is needed."""

from collections.abc import Callable

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

Another = Callable[[], Connection]


def position(db: Connection) -> list[tuple[object, ...]]:
    columns = "sub_id, sub_last_tick, sub_active, sub_batch, sub_next_tick, lease_owner"
    return rows(db, f"select {columns} from pgque.subscription order by sub_id")


def test_compaction_keeps_one_position_for_each_subscription(db: Connection) -> None:
    make_queue(db, consumers=("a", "b"))
    before = position(db)
    dropped = compact_positions(db)
    assert (dropped, position(db)) == (6000, before)
    empty_halves(db)
    assert value(db, "select count(*) from pgque.position_log") == 2


def test_a_short_log_is_left_alone(db: Connection) -> None:
    make_queue(db)
    for _ in range(5):
        finish(db, open_batch(db, "a"))
    assert value(db, "select pgque.maint_compact_positions()") == 0


def test_compaction_keeps_an_open_batch(db: Connection) -> None:
    make_queue(db)
    batch = open_batch(db, "a")
    before = events(db, batch)
    compact_positions(db)
    assert (next_batch(db), events(db, batch)) == (batch, before)


def test_compaction_keeps_a_lease(db: Connection) -> None:
    make_queue(db)
    send(db, "a")
    tick(db)
    ((batch, epoch),) = rows(db, "select batch_id, epoch from pgque.claim_batch('q', 'c', 'me')")
    compact_positions(db)
    assert value(db, "select pgque.ack_batch(%s, 'me', %s)", batch, epoch) == 1


def test_compaction_drops_positions_of_ended_registrations(db: Connection) -> None:
    make_queue(db, consumers=("stays", "goes"))
    bloat_positions(db)
    value(db, "select pgque.unregister_consumer('q', 'goes')")
    value(db, "select pgque.maint_compact_positions()")
    empty_halves(db)
    assert value(db, "select count(*) from pgque.position_log") == 1


def test_compaction_leaves_no_dead_position_under_a_held_snapshot(
    db: Connection, another: Another
) -> None:
    make_queue(db)
    holder = another()
    holder.execute("begin isolation level repeatable read")
    value(holder, "select pg_current_snapshot()::text")
    compact_positions(db)
    value(db, "select pg_stat_force_next_flush()::text")
    assert value(db, "select pg_relation_size('pgque.position_log_1')") == 8192


def test_a_log_that_is_read_is_compacted_and_emptied_the_next_time(
    db: Connection, another: Another
) -> None:
    make_queue(db)
    user = another()
    with user.transaction():
        value(user, "select count(*) from pgque.subscription")
        assert compact_positions(db) == 3000
        empty_halves(db)
        assert value(db, "select count(*) from pgque.position_log") > 3000
    empty_halves(db)
    assert value(db, "select count(*) from pgque.position_log") == 1


def test_a_position_that_is_not_committed_holds_compaction_back(
    db: Connection, another: Another
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


def test_compaction_keeps_the_ticks_that_a_lagging_consumer_needs(db: Connection) -> None:
    make_queue(db, consumers=("fast", "slow"))
    bloat_ticks(db, 2100)
    drain(db, consumer="fast")
    value(db, "select pgque.register_consumer_at('q', 'slow', 2000)")
    compact_ticks(db)
    send(db, "a")
    tick(db)
    assert value(db, "select min(tick_id) from pgque.tick") == 2000
    assert drain(db, consumer="slow") == ["a"]


def test_compaction_keeps_the_last_two_ticks_of_a_queue_without_consumers(db: Connection) -> None:
    make_queue(db, consumers=())
    bloat_ticks(db, 1200)
    newest = last_tick(db)
    compact_ticks(db)
    assert rows(db, "select tick_id from pgque.tick order by 1") == [(newest - 1,), (newest,)]


def test_ticks_go_on_counting_after_a_compaction(db: Connection) -> None:
    make_queue(db, consumers=())
    bloat_ticks(db, 1200)
    newest = last_tick(db)
    compact_ticks(db)
    assert tick(db) == newest + 1


def test_compaction_drops_the_ticks_of_dropped_queues(db: Connection) -> None:
    make_queue(db, "gone", consumers=())
    make_queue(db)
    bloat_ticks(db, 1200, "gone")
    value(db, "select pgque.drop_queue('gone')")
    compact_ticks(db)
    assert value(db, "select count(*) from pgque.tick") == 1


def test_few_ticks_are_left_alone(db: Connection) -> None:
    make_queue(db, consumers=())
    bloat_ticks(db, 900)
    assert compact_ticks(db) == 0


def test_ticks_that_are_read_are_compacted(db: Connection, another: Another) -> None:
    make_queue(db, consumers=())
    bloat_ticks(db)
    user = another()
    with user.transaction():
        value(user, "select count(*) from pgque.tick")
        assert compact_ticks(db) > 0
    assert value(db, "select count(*) from pgque.tick") == 2


def test_a_tick_that_is_not_committed_holds_the_switch_back(
    db: Connection, another: Another
) -> None:
    make_queue(db, consumers=())
    bloat_ticks(db)
    ticker = another()
    with ticker.transaction():
        tick(ticker)
        assert compact_ticks(db) == 0
        # After a minute of such attempts it waits longer for the lock.
        tried = "select tried_at is not null from pgque.log_rotation where log_name = 'tick'"
        assert value(db, tried) is True
    newest = last_tick(db)
    assert compact_ticks(db) > 0
    assert (last_tick(db), tick(db)) == (newest, newest + 1)


@pytest.fixture
def outdated(db: Connection, another: Another) -> Connection:
    """In a transaction whose snapshot is older than there is patience with."""
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


@pytest.mark.parametrize(
    "call",
    [
        "pgque.next_batch('q', 'c')",
        "pgque.next_batch_custom('q', 'c', null, null, null)",
        "pgque.claim_batch('q', 'c', 'me')",
        "pgque.receive('q', 'c')",
        "pgque.finish_batch(1)",
        "pgque.get_batch_events(1)",
        "pgque.get_batch_info(1)",
        "pgque.batch_read_plan(1, 2)",
        "pgque.nack_batch(1, '{1}')",
        "pgque.ack_batch(1, 'me', 1)",
        "pgque.get_lease_info('q', 'c')",
        "pgque.get_consumer_info('q', 'c')",
        "pgque.unregister_consumer('q', 'c')",
        "pgque.register_consumer('q', 'new')",
    ],
)
def test_a_transaction_older_than_a_compaction_is_told_to_start_again(
    outdated: Connection, call: str
) -> None:
    with refused("40001", "roll back and try again"):
        outdated.execute(f"select * from {call}".encode())


def test_a_transaction_older_than_a_compaction_may_drop_a_queue(
    db: Connection, outdated: Connection
) -> None:
    assert value(outdated, "select pgque.drop_queue('q', true)") == 1
    outdated.execute("commit")
    assert rows(db, "select * from pgque.get_queue_info()") == []


def test_a_ticker_older_than_a_compaction_is_told_to_start_again(outdated: Connection) -> None:
    with refused("40001"):
        value(outdated, "select pgque.ticker()")
