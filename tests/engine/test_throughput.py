"""Histories: what was sent and what failed in each bucket, and how long batches took."""

from datetime import timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest

from tests.support.halves import catch_up
from tests.support.metrics import age_ticks, compact_counters, work
from tests.support.queues import (
    Connection,
    bloat_ticks,
    compact_ticks,
    drain,
    finish,
    last_tick,
    make_queue,
    open_batch,
    refused,
    rows,
    send,
    tick,
    value,
)
from tests.support.workers import next_of, queue_with_ticks


def throughput(
    db: Connection, period: str = "1 hour", bucket: str = "1 minute", queue: str = "q"
) -> list[int]:
    """The events of the buckets in which there were some, the oldest first."""
    found = rows(
        db,
        "select events from pgque.throughput(%s, %s, %s) where events > 0",
        queue,
        period,
        bucket,
    )
    return [events for (events,) in found]


def errors(db: Connection, period: str = "1 hour", bucket: str = "1 minute") -> tuple[int, int]:
    """Retries and dead letters of all buckets."""
    ((retries, dead),) = rows(
        db,
        "select sum(retries)::int, sum(dead_letters)::int from pgque.error_rate('q', %s, %s)",
        period,
        bucket,
    )
    return retries, dead


def latency(db: Connection, period: str = "1 hour") -> tuple[Any, ...]:
    (row,) = rows(db, "select * from pgque.latency_percentiles('q', 'c', %s)", period)
    return row


BUCKETED = ["throughput", "error_rate"]


@pytest.mark.parametrize("function", BUCKETED)
class TestBuckets:
    def test_they_cover_the_period_up_to_now_without_gaps(
        self, db: Connection, function: str
    ) -> None:
        make_queue(db)
        starts = [
            start
            for (start, *_) in rows(
                db, f"select * from pgque.{function}('q', '1 hour', '5 minutes')"
            )
        ]
        now = value(db, "select clock_timestamp()")
        assert len(starts) == 13
        assert {later - earlier for earlier, later in pairwise(starts)} == {timedelta(minutes=5)}
        assert now - timedelta(minutes=5, seconds=30) < starts[-1] <= now
        assert all(start.minute % 5 == 0 and start.second == 0 for start in starts)

    @pytest.mark.parametrize(
        ("period", "bucket"),
        [
            (None, "1 minute"),
            ("1 hour", None),
            ("0", "1 minute"),
            ("1 hour", "0"),
            ("-1 hour", "1 minute"),
            ("1 hour", "-1 minute"),
            ("1 year", "1 month"),
            ("1 year", "1 second"),
            ("200 years", "100 days"),
            ("1 hour", "999999 days"),
        ],
    )
    def test_what_makes_no_buckets_is_refused(
        self, db: Connection, function: str, period: str | None, bucket: str | None
    ) -> None:
        make_queue(db)
        with refused("PQ005", "buckets"):
            rows(
                db,
                f"select * from pgque.{function}('q', %s::interval, %s::interval)",
                period,
                bucket,
            )

    @pytest.mark.parametrize("unit", ["1 month", "1 year", "10 days"])
    def test_a_long_period_is_fine(self, db: Connection, function: str, unit: str) -> None:
        make_queue(db)
        assert rows(db, f"select * from pgque.{function}('q', %s, '1 day')", unit) != []

    @pytest.mark.parametrize(("queue", "code"), [("none", "PQ001"), (None, "PQ005")])
    def test_a_queue_that_is_not_there_is_named(
        self, db: Connection, function: str, queue: str | None, code: str
    ) -> None:
        with refused(code):
            rows(db, f"select * from pgque.{function}(%s, '1 hour', '1 minute')", queue)

    def test_names_with_quotes_and_other_scripts_come_through(
        self, db: Connection, function: str
    ) -> None:
        queue = "q'\"\\ %s été 世界"
        make_queue(db, queue)
        work(db, queue)
        found = rows(db, f"select * from pgque.{function}(%s, '1 hour', '1 hour')", queue)
        assert sum(row[1] for row in found) == {"throughput": 5, "error_rate": 1}[function]


class TestThroughput:
    def test_events_count_in_the_bucket_of_their_tick(self, db: Connection) -> None:
        make_queue(db)
        send(db, "a", "b", "c")
        tick(db)
        age_ticks(db, "30 minutes")
        send(db, "d")
        tick(db)
        assert throughput(db) == [3, 1]

    def test_events_that_are_not_ticked_count_now(self, db: Connection) -> None:
        make_queue(db, ticker_paused="true")
        send(db, "a", "b")
        assert throughput(db) == [2]

    def test_the_rate_is_by_the_second_of_the_bucket(self, db: Connection) -> None:
        make_queue(db)
        send(db, *"abcdef")
        tick(db)
        age_ticks(db, "5 minutes")
        assert rows(
            db,
            "select events, events_per_sec from pgque.throughput('q', '1 hour', '1 minute')"
            " where events > 0",
        ) == [(6, Decimal("0.100"))]

    def test_events_before_the_period_are_left_out(self, db: Connection) -> None:
        make_queue(db)
        send(db, "a")
        tick(db)
        age_ticks(db, "2 hours")
        assert throughput(db) == []

    def test_ticks_that_were_dropped_count_still(self, db: Connection) -> None:
        make_queue(db)
        for minutes in (20, 10, 5):
            send(db, *"x" * minutes)
            tick(db)
            age_ticks(db, "5 minutes")
        before = throughput(db)
        bloat_ticks(db, 2100)
        value(db, "select pgque.register_consumer_at('q', 'c', %s)", last_tick(db))
        assert compact_ticks(db) == 1
        assert throughput(db) == before == [20, 10, 5]

    def test_dropped_ticks_without_events_leave_nothing_behind(self, db: Connection) -> None:
        make_queue(db, consumers=())
        send(db, "a")
        for _ in range(2):
            bloat_ticks(db, 1200)
            age_ticks(db, "2 minutes")
            tick(db)
        compact_ticks(db)
        bloat_ticks(db, 1200)
        compact_ticks(db)
        found = value(db, "select count(*) from pgque.history where queue_id > 0")
        assert found <= 2 and throughput(db) == [1]

    def test_dropped_ticks_leave_one_row_for_each_minute(self, db: Connection) -> None:
        """Only a queue's first tick has a row besides, to count from."""
        make_queue(db)
        history = "select event_seq from pgque.history where queue_id > 0 order by 1"
        kept, aged = [], 0
        for minute in (3, 2):
            bloat_ticks(db, 2100)
            for text in "abc":
                send(db, text)
                tick(db)
            catch_up(db, "c")
            db.execute(
                "update pgque.tick_log set tick_time ="
                " date_trunc('minute', clock_timestamp()) - %s * interval '1 minute'"
                " where tick_id > %s",
                [minute, aged],
            )
            aged = last_tick(db)
            assert compact_ticks(db) == 1
            kept.append([seq for (seq,) in rows(db, history)])
        # The last two ticks stay, with the events b and c.
        assert kept == [[0, 1], [0, 1, 3, 4]]

    def test_buckets_before_what_is_known_are_left_out(self, db: Connection) -> None:
        make_queue(db)
        send(db, "a")
        tick(db)
        finish(db, value(db, "select pgque.next_batch('q', 'c')"))
        tick(db)
        db.execute("delete from pgque.tick_log where tick_event_seq = 0")
        assert len(rows(db, "select * from pgque.throughput('q', '1 hour', '30 minutes')")) == 1

    def test_history_goes_when_it_is_twice_as_old_as_it_needs_to_be(self, db: Connection) -> None:
        make_queue(db)
        db.execute(
            "insert into pgque.history (queue_id, counted_at, event_seq)"
            " select queue_id, now() - nr * interval '1 hour', 100 - nr"
            " from pgque.queue, generate_series(1, 47) nr"
        )
        assert value(db, "select pgque.maint_compact_history()") == 0
        db.execute(
            "update pgque.history set counted_at = counted_at - interval '2 hours'"
            " where queue_id > 0"
        )
        assert value(db, "select pgque.maint_compact_history()") == 26
        assert value(db, "select count(*) from pgque.history where queue_id > 0") == 21


class TestErrorRate:
    def test_retries_and_dead_letters_count_when_they_happen(self, db: Connection) -> None:
        make_queue(db)
        work(db)
        assert errors(db) == (1, 2)

    def test_they_count_after_purge_and_replay(self, db: Connection) -> None:
        make_queue(db)
        work(db)
        value(db, "select pgque.dlq_replay_all('q')")
        db.execute("update pgque.retry_queue set ev_retry_after = now()")
        value(db, "select pgque.maint_retry_events()")
        assert errors(db) == (1, 2)

    def test_they_count_when_counters_were_added_up(self, db: Connection) -> None:
        make_queue(db)
        work(db)
        before = rows(
            db, "select * from pgque.error_rate('q', '1 hour', '1 minute') where retries > 0"
        )
        assert compact_counters(db) > 0
        found = rows(
            db, "select * from pgque.error_rate('q', '1 hour', '1 minute') where retries > 0"
        )
        assert found == before != []
        work(db)
        assert errors(db) == (2, 4)

    def test_they_count_after_the_end_of_the_consumer(self, db: Connection) -> None:
        make_queue(db)
        work(db)
        value(db, "select pgque.unregister_consumer('q', 'c')")
        assert errors(db) == (1, 2)

    def test_those_before_the_period_are_left_out(self, db: Connection) -> None:
        make_queue(db)
        work(db)
        db.execute("update pgque.counter_log set counted_at = counted_at - interval '2 hours'")
        assert (errors(db), errors(db, "3 hours")) == ((0, 0), (1, 2))

    def test_other_queues_do_not_count(self, db: Connection) -> None:
        make_queue(db)
        make_queue(db, "other")
        work(db, "other")
        assert errors(db) == (0, 0)


class TestLatency:
    def test_without_a_batch_it_is_unknown(self, db: Connection) -> None:
        make_queue(db)
        open_batch(db, "still open")
        assert latency(db) == (None, None, None)

    def test_it_runs_from_the_tick_to_the_end_of_the_batch(self, db: Connection) -> None:
        make_queue(db)
        for minutes in range(1, 11):
            send(db, "a")
            tick(db)
            db.execute(
                "update pgque.tick_log set tick_time = clock_timestamp() - %s * interval '1 minute'"
                " where tick_id = %s",
                [minutes, last_tick(db)],
            )
            drain(db)
        p50, p95, p99 = latency(db)
        assert timedelta(minutes=5) < p50 < timedelta(minutes=6.5)
        assert timedelta(minutes=9) < p95 < p99 < timedelta(minutes=11)

    def test_batches_before_the_period_are_left_out(self, db: Connection) -> None:
        make_queue(db)
        finish(db, open_batch(db, "a"))
        db.execute("update pgque.position_log set sub_active = sub_active - interval '2 hours'")
        assert latency(db) == (None, None, None)
        assert None not in latency(db, "3 hours")

    def test_a_batch_that_was_taken_back_does_not_count(self, db: Connection) -> None:
        make_queue(db)
        open_batch(db, "a")
        value(db, "select pgque.register_consumer_at('q', 'c', 1)")
        assert latency(db) == (None, None, None)

    def test_batches_of_subconsumers_count_for_the_main_consumer(self, db: Connection) -> None:
        queue_with_ticks(db, "a")
        finish(db, next_of(db, "w1"))
        assert None not in latency(db)

    def test_a_renewed_batch_counts_once(self, db: Connection) -> None:
        make_queue(db)
        send(db, "a")
        tick(db)
        ((batch, epoch),) = rows(
            db, "select batch_id, epoch from pgque.claim_batch('q', 'c', 'me', '1 hour')"
        )
        for _ in range(3):
            value(db, "select pgque.renew_batch(%s, 'me', %s)", batch, epoch)
        value(db, "select pgque.ack_batch(%s, 'me', %s)", batch, epoch)
        assert value(db, "select count(*) from pgque.ended_batch") == 1

    @pytest.mark.parametrize("period", [None, "0", "-1 s", "300 years"])
    def test_a_period_that_is_none_is_refused(self, db: Connection, period: str | None) -> None:
        make_queue(db)
        with refused("PQ005"):
            rows(db, "select * from pgque.latency_percentiles('q', 'c', %s::interval)", period)

    @pytest.mark.parametrize(
        ("queue", "consumer", "code"),
        [
            ("none", "c", "PQ001"),
            ("q", "none", "PQ002"),
            ("q", None, "PQ005"),
            (None, "c", "PQ005"),
        ],
    )
    def test_names_that_are_not_there_are_named(
        self, db: Connection, queue: str | None, consumer: str | None, code: str
    ) -> None:
        make_queue(db)
        with refused(code):
            rows(db, "select * from pgque.latency_percentiles(%s, %s, '1 hour')", queue, consumer)
