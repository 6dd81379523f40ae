"""Statistics: queues and consumers at a glance, open batches, and consumers that are stuck."""

from datetime import timedelta
from typing import Any

import pytest

from tests.support.metrics import age_positions, age_ticks, work
from tests.support.queues import (
    Connection,
    finish,
    last_tick,
    make_queue,
    next_batch,
    open_batch,
    refused,
    rotate,
    rows,
    send,
    tick,
    value,
)
from tests.support.workers import next_of, queue_with_ticks


def queue_stats(db: Connection, queue: str = "q") -> dict[str, Any]:
    cursor = db.execute("select * from pgque.queue_stats() where queue_name = %s", [queue])
    names = [column.name for column in cursor.description or ()]
    (row,) = cursor.fetchall()
    return dict(zip(names, row, strict=True))


def consumer_stats(db: Connection, consumer: str = "c") -> dict[str, Any]:
    cursor = db.execute("select * from pgque.consumer_stats() where consumer_name = %s", [consumer])
    names = [column.name for column in cursor.description or ()]
    (row,) = cursor.fetchall()
    return dict(zip(names, row, strict=True))


def stuck(db: Connection, threshold: str = "1 hour") -> list[str]:
    found = rows(db, "select consumer_name from pgque.stuck_consumers(%s)", threshold)
    return [name for (name,) in found]


@pytest.mark.parametrize("call", ["queue_stats()", "consumer_stats()", "stuck_consumers()"])
def test_an_empty_database_has_no_statistics(db: Connection, call: str) -> None:
    assert rows(db, f"select * from pgque.{call}") == []


class TestQueues:
    def test_the_columns_are_those_of_pgque(self, db: Connection) -> None:
        make_queue(db)
        assert list(queue_stats(db)) == [
            "queue_name",
            "queue_id",
            "depth",
            "oldest_msg_age",
            "consumers",
            "events_per_sec",
            "cur_table",
            "rotation_age",
            "rotation_period",
            "ticker_paused",
            "last_tick_time",
            "last_tick_id",
            "dlq_count",
        ]

    def test_a_new_queue_without_consumers_is_empty(self, db: Connection) -> None:
        make_queue(db, consumers=())
        stats = queue_stats(db)
        assert (stats["depth"], stats["oldest_msg_age"], stats["consumers"]) == (0, None, 0)
        assert (stats["events_per_sec"], stats["last_tick_id"], stats["dlq_count"]) == (0, 1, 0)

    def test_the_depth_is_that_of_the_slowest_consumer(self, db: Connection) -> None:
        make_queue(db, consumers=("fast", "slow"))
        finish(db, open_batch(db, "a", "b", consumer="fast"))
        send(db, "not ticked yet")
        assert queue_stats(db)["depth"] == 3

    def test_an_open_batch_is_not_finished(self, db: Connection) -> None:
        make_queue(db)
        batch = open_batch(db, "a", "b")
        before = queue_stats(db)["depth"]
        finish(db, batch)
        assert (before, queue_stats(db)["depth"]) == (2, 0)

    def test_a_subconsumers_open_batch_is_not_finished(self, db: Connection) -> None:
        queue_with_ticks(db, "a", "b")
        next_of(db, "w1")
        stats = queue_stats(db)
        assert (stats["depth"], stats["consumers"]) == (2, 1)

    def test_events_of_a_paused_queue_count(self, db: Connection) -> None:
        make_queue(db, ticker_paused="true")
        send(db, "a")
        stats = queue_stats(db)
        assert (stats["depth"], stats["ticker_paused"]) == (1, True)

    def test_the_oldest_message_is_younger_than_the_idle_ticks_before_it(
        self, db: Connection
    ) -> None:
        make_queue(db)
        tick(db)
        age_ticks(db, "1 hour")
        tick(db)
        send(db, "a")
        tick(db)
        assert queue_stats(db)["oldest_msg_age"] < timedelta(minutes=1)

    def test_the_oldest_message_ages(self, db: Connection) -> None:
        make_queue(db)
        send(db, "a")
        tick(db)
        age_ticks(db, "1 hour")
        assert timedelta(hours=1) < queue_stats(db)["oldest_msg_age"] < timedelta(hours=2)

    def test_without_a_message_nothing_is_old(self, db: Connection) -> None:
        make_queue(db)
        age_ticks(db, "1 hour")
        assert queue_stats(db)["oldest_msg_age"] is None

    def test_the_rate_is_that_between_the_last_two_ticks(self, db: Connection) -> None:
        make_queue(db)
        tick(db)
        age_ticks(db, "10 s")
        send(db, *"abcdefghij")
        tick(db)
        assert 0.3 < queue_stats(db)["events_per_sec"] <= 1

    def test_rotation_shows(self, db: Connection) -> None:
        make_queue(db)
        db.execute("update pgque.queue set queue_switch_time = now() - interval '1 day'")
        before = queue_stats(db)
        assert rotate(db) == 1
        after = queue_stats(db)
        assert (before["cur_table"], after["cur_table"]) == (0, 1)
        assert after["rotation_age"] < timedelta(hours=1) < before["rotation_age"]

    def test_dead_letters_count_by_the_thousand(self, db: Connection) -> None:
        make_queue(db)
        make_queue(db, "other")
        value(db, "select pgque.send_batch('q', array_fill('x'::text, '{5000}'))")
        batch = open_batch(db, "last")
        value(
            db,
            "select pgque.dead_letter_batch(%s, array(select generate_series(1, 5001)), 'bad')",
            batch,
        )
        assert (queue_stats(db)["dlq_count"], queue_stats(db, "other")["dlq_count"]) == (5001, 0)


class TestConsumers:
    def test_a_consumer_at_the_last_tick_has_nothing_pending(self, db: Connection) -> None:
        make_queue(db)
        finish(db, open_batch(db, "a"))
        stats = consumer_stats(db)
        assert (stats["pending_events"], stats["batch_active"], stats["batch_id"]) == (
            0,
            False,
            None,
        )

    def test_an_open_batch_shows_since_when(self, db: Connection) -> None:
        make_queue(db)
        batch = open_batch(db, "a", "b")
        age_positions(db, "1 hour")
        stats = consumer_stats(db)
        assert (stats["pending_events"], stats["batch_active"], stats["batch_id"]) == (
            2,
            True,
            batch,
        )
        age = value(db, "select now() - %s", stats["last_batch_start"])
        assert timedelta(minutes=59) < age < timedelta(hours=2)

    def test_a_renewed_lease_does_not_make_the_batch_younger(self, db: Connection) -> None:
        make_queue(db)
        send(db, "a")
        tick(db)
        ((batch, epoch),) = rows(
            db, "select batch_id, epoch from pgque.claim_batch('q', 'c', 'me', '3 hours')"
        )
        age_positions(db, "1 hour")
        value(db, "select pgque.renew_batch(%s, 'me', %s)", batch, epoch)
        age = value(db, "select now() - %s", consumer_stats(db)["last_batch_start"])
        assert timedelta(minutes=59) < age

    def test_the_lag_is_the_age_of_the_consumers_tick(self, db: Connection) -> None:
        make_queue(db)
        age_ticks(db, "1 hour")
        send(db, "a")
        tick(db)
        lag = consumer_stats(db)["lag"]
        assert timedelta(minutes=59) < lag < timedelta(hours=2)

    def test_a_subconsumer_has_its_batch_before_it_and_nothing_else(self, db: Connection) -> None:
        queue_with_ticks(db, "a", "b", "c")
        before = consumer_stats(db, "c.w1")
        next_of(db, "w1")
        after = consumer_stats(db, "c.w1")
        assert (before["lag"], before["pending_events"]) == (None, None)
        assert (after["pending_events"], consumer_stats(db)["pending_events"]) == (1, 2)


class TestOpenBatches:
    def test_without_one_nothing_is_in_flight(self, db: Connection) -> None:
        make_queue(db, consumers=("c", "d"))
        assert rows(db, "select * from pgque.in_flight('q')") == []

    def test_each_open_batch_shows_with_its_size_the_oldest_first(self, db: Connection) -> None:
        make_queue(db, consumers=("c", "d", "idle"))
        first = open_batch(db, "a", "b", consumer="d")
        age_positions(db, "1 hour")
        second = next_batch(db)
        found = rows(
            db,
            "select consumer_name, batch_id, estimated_events, batch_age > '59 minutes'"
            " from pgque.in_flight('q')",
        )
        assert found == [("d", first, 2, True), ("c", second, 2, False)]

    def test_batches_of_other_queues_do_not_show(self, db: Connection) -> None:
        make_queue(db)
        make_queue(db, "other")
        open_batch(db, "a", queue="other")
        assert rows(db, "select * from pgque.in_flight('q')") == []

    def test_a_queue_is_needed(self, db: Connection) -> None:
        with refused("PQ005"):
            rows(db, "select * from pgque.in_flight(null)")


class TestStuckConsumers:
    def test_a_consumer_that_never_came_for_its_ticks_is_stuck(self, db: Connection) -> None:
        make_queue(db)
        tick(db)
        assert stuck(db) == []
        age_positions(db, "2 hours")
        assert stuck(db) == ["c"]

    def test_the_columns_say_how_far_behind_and_since_when(self, db: Connection) -> None:
        make_queue(db)
        age_ticks(db, "2 hours")
        age_positions(db, "3 hours")
        tick(db)
        ((queue, consumer, lag, silence),) = rows(
            db,
            "select queue_name, consumer_name, lag, now() - last_active"
            " from pgque.stuck_consumers()",
        )
        assert (queue, consumer) == ("q", "c")
        assert timedelta(hours=2) <= lag < timedelta(hours=3) <= silence

    def test_a_consumer_with_nothing_to_do_is_not(self, db: Connection) -> None:
        make_queue(db)
        age_ticks(db, "2 hours")
        age_positions(db, "2 hours")
        assert stuck(db) == []

    def test_a_batch_that_is_open_for_too_long_is_even_if_its_worker_is_alive(
        self, db: Connection
    ) -> None:
        make_queue(db)
        send(db, "a")
        tick(db)
        value(db, "select batch_id from pgque.claim_batch('q', 'c', 'me', '1 hour')")
        age_positions(db, "2 hours")
        value(db, "select batch_id from pgque.claim_batch('q', 'c', 'you', '1 hour')")
        assert stuck(db) == ["c"]

    def test_an_idle_subconsumer_is_not(self, db: Connection) -> None:
        queue_with_ticks(db)
        age_positions(db, "2 hours")
        assert stuck(db) == []

    def test_a_subconsumer_that_died_with_a_batch_is(self, db: Connection) -> None:
        queue_with_ticks(db, "a")
        next_of(db, "w1")
        age_positions(db, "2 hours")
        assert stuck(db) == ["c.w1"]

    def test_the_threshold_counts(self, db: Connection) -> None:
        make_queue(db)
        tick(db)
        age_positions(db, "10 minutes")
        assert (stuck(db, "5 minutes"), stuck(db, "15 minutes")) == (["c"], [])

    @pytest.mark.parametrize("threshold", [None, "-1 s"])
    def test_a_threshold_that_is_none_is_refused(
        self, db: Connection, threshold: str | None
    ) -> None:
        with refused("PQ005"):
            rows(db, "select * from pgque.stuck_consumers(%s::interval)", threshold)


def test_names_with_quotes_and_other_scripts_come_through(db: Connection) -> None:
    queue, consumer = "q'\"\\ {} %s été", "c'\"\\ 世界"
    make_queue(db, queue, consumers=(consumer,))
    work(db, queue, consumer)
    assert queue_stats(db, queue)["dlq_count"] == 2
    assert consumer_stats(db, consumer)["queue_name"] == queue
    open_batch(db, "a", queue=queue, consumer=consumer)
    assert rows(db, "select consumer_name from pgque.in_flight(%s)", queue) == [(consumer,)]
    age_positions(db, "2 hours")
    assert stuck(db) == [consumer]


def test_positions_of_a_queue_whose_ticks_are_gone_are_unknown(db: Connection) -> None:
    make_queue(db)
    last = last_tick(db)
    db.execute("delete from pgque.tick_log")
    stats = queue_stats(db)
    assert last == 1 and (stats["depth"], stats["last_tick_id"]) == (0, None)
    assert consumer_stats(db)["lag"] is None
