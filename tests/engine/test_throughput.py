"""Histories: what was sent and what failed in each bucket, and the batches that ended."""

from datetime import timedelta
from decimal import Decimal
from itertools import pairwise

import pytest

from tests.support.queues.halves import catch_up
from tests.support.queues.metrics import age_ticks, compact_counters, work
from tests.support.queues.sql import Connection, refused

RATES = "select * from pgque.error_rate('q', '1 hour', '1 minute') where retries > 0"


def throughput(db: Connection) -> list[int]:
    """The events of the last hour's minutes in which there were some, the oldest first."""
    sql = "select events from pgque.throughput('q', '1 hour', '1 minute') where events > 0"
    return [events for (events,) in db.rows(sql)]


def errors(db: Connection, period: str = "1 hour") -> tuple[int, int]:
    """Retries and dead letters of all buckets."""
    sums = "sum(retries)::int, sum(dead_letters)::int"
    ((retries, dead),) = db.rows(
        f"select {sums} from pgque.error_rate('q', %s, '1 minute')", period
    )
    return retries, dead


@pytest.mark.parametrize("function", ["throughput", "error_rate"])
class TestBuckets:
    def test_they_cover_the_period_without_gaps(self, q: Connection, function: str) -> None:
        found = q.rows(f"select * from pgque.{function}('q', '1 hour', '5 minutes')")
        starts = [start for start, *_ in found]
        now = q.value("select clock_timestamp()")
        assert len(starts) == 13
        assert {later - earlier for earlier, later in pairwise(starts)} == {timedelta(minutes=5)}
        assert now - timedelta(minutes=5, seconds=30) < starts[-1] <= now
        assert all(start.minute % 5 == 0 and start.second == 0 for start in starts)
        for period in ("1 month", "1 year", "10 days"):
            assert q.rows(f"select * from pgque.{function}('q', %s, '1 day')", period) != []

    def test_what_makes_no_buckets_is_refused(self, q: Connection, function: str) -> None:
        sql = f"select * from pgque.{function}('q', %s::interval, %s::interval)"
        for period, bucket in (
            ("0", "1 minute"),
            ("1 hour", "0"),
            ("1 year", "1 month"),
            ("1 year", "1 second"),
            ("200 years", "100 days"),
            ("1 hour", "999999 days"),
        ):
            with refused("PQ005", "buckets"):
                q.rows(sql, period, bucket)


class TestThroughput:
    def test_events_count_in_the_bucket_of_their_tick(self, q: Connection) -> None:
        q.publish("old")
        age_ticks(q, "2 hours")
        assert throughput(q) == []
        q.publish(*"abcdef")
        age_ticks(q, "5 minutes")
        columns = "events, events_per_sec"
        sql = f"select {columns} from pgque.throughput('q', '1 hour', '1 minute') where events > 0"
        assert q.rows(sql) == [(6, Decimal("0.100"))]
        q.value("select pgque.pause_queue('q')")
        q.send("not", "ticked")
        assert throughput(q) == [6, 2]

    def test_ticks_that_were_dropped_count_still(self, q: Connection) -> None:
        for minutes in (20, 10, 5):
            q.publish(*"x" * minutes)
            age_ticks(q, "5 minutes")
        q.bloat_ticks(2100)
        catch_up(q, "c")
        assert throughput(q) == [20, 10, 5]
        assert q.compact_ticks() == 1
        assert throughput(q) == [20, 10, 5]

    def test_dropped_ticks_without_events_leave_nothing_behind(self, bare: Connection) -> None:
        bare.send("a")
        for _ in range(2):
            bare.bloat_ticks(1200)
            age_ticks(bare, "2 minutes")
            bare.tick()
        bare.compact_ticks()
        bare.bloat_ticks(1200)
        bare.compact_ticks()
        found = bare.value("select count(*) from pgque.history")
        assert found <= 2 and throughput(bare) == [1]

    def test_dropped_ticks_leave_one_row_for_each_minute(self, q: Connection) -> None:
        """Only a queue's first tick has a row besides, to count from."""
        history = "select event_seq from pgque.history order by 1"
        kept, aged = [], 0
        for minute in (3, 2):
            q.bloat_ticks(2100)
            for text in "abc":
                q.publish(text)
            catch_up(q, "c")
            q.execute(
                "update pgque.tick_log set tick_time ="
                " date_trunc('minute', clock_timestamp()) - %s * interval '1 minute'"
                " where tick_id > %s",
                [minute, aged],
            )
            aged = q.last_tick()
            assert q.compact_ticks() == 1
            kept.append([seq for (seq,) in q.rows(history)])
        # The last two ticks stay, with the events b and c.
        assert kept == [[0, 1], [0, 1, 3, 4]]

    def test_buckets_before_what_is_known_are_left_out(self, q: Connection) -> None:
        q.send("a")
        q.received()
        q.tick()
        q.execute("delete from pgque.tick_log where tick_event_seq = 0")
        assert len(q.rows("select * from pgque.throughput('q', '1 hour', '30 minutes')")) == 1

    def test_history_goes_after_a_day(self, q: Connection) -> None:
        q.execute(
            "insert into pgque.history (queue_id, counted_at, event_seq)"
            " select queue_id, now() - nr * interval '1 hour', 100 - nr"
            " from pgque.queue, generate_series(1, 47) nr"
        )
        q.value("select pgque.maint_compact_counters()")
        assert q.value("select count(*) from pgque.history") == 23


class TestErrorRate:
    def test_retries_and_dead_letters_count_when_they_happen(self, q: Connection) -> None:
        """Whatever comes later: replay, delivery, compaction of the counters."""
        q.make_queue("other")
        work(q, "other")
        assert errors(q) == (0, 0)
        work(q)
        assert errors(q) == (1, 2)
        q.value("select pgque.dlq_replay_all('q')")
        q.execute("update pgque.retry_queue set ev_retry_after = now()")
        q.value("select pgque.maint_retry_events()")
        before = q.rows(RATES)
        assert compact_counters(q) > 0
        assert q.rows(RATES) == before != []
        work(q)
        assert errors(q) == (2, 4)

    def test_they_count_after_their_consumer_until_the_period_is_over(self, q: Connection) -> None:
        work(q)
        q.value("select pgque.unregister_consumer('q', 'c')")
        assert errors(q) == (1, 2)
        q.execute("update pgque.counter_log set counted_at = counted_at - interval '2 hours'")
        assert (errors(q), errors(q, "3 hours")) == ((0, 0), (1, 2))


class TestEndedBatches:
    """What the metrics of sizes and times of batches are of."""

    def ended(self, db: Connection) -> int:
        count: int = db.value("select count(*) from pgque.ended_batch")
        return count

    def test_a_renewed_batch_counts_once(self, q: Connection) -> None:
        q.publish("a")
        claim = "select batch_id, epoch from pgque.claim_batch('q', 'c', 'me', '1 hour')"
        ((batch, epoch),) = q.rows(claim)
        for _ in range(3):
            q.value("select pgque.renew_batch(%s, 'me', %s)", batch, epoch)
        q.value("select pgque.ack_batch(%s, 'me', %s)", batch, epoch)
        assert self.ended(q) == 1
