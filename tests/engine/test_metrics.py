"""Metrics: every one of the specification's, and counters that never go down."""

import re
from pathlib import Path

import pytest
import yaml

from tests.support.queues.metrics import (
    age_events,
    age_ticks,
    bloat_counters,
    compact_counters,
    consumer_counters,
    counters,
    metric,
    metrics,
    work,
)
from tests.support.queues.sql import Connection
from tests.support.queues.workers import next_of, queue_with_ticks, work_off

SQL = Path(__file__).parents[2] / "sql"

SPECIFIED = {
    ("pgque.queue.depth", "gauge"),
    ("pgque.queue.oldest_message_age_seconds", "gauge"),
    ("pgque.message.sent_total", "counter"),
    ("pgque.message.acked_total", "counter"),
    ("pgque.message.nacked_total", "counter"),
    ("pgque.message.dead_lettered", "gauge"),
    ("pgque.consumer.lag_seconds", "gauge"),
    ("pgque.consumer.pending_events", "gauge"),
    ("pgque.processing_latency_seconds", "gauge"),
    ("pgque.batch.size", "gauge"),
}


@pytest.fixture
def worked(q: Connection) -> Connection:
    """A queue with one batch behind it: 5 sent and finished, 1 retried, 2 given up."""
    work(q)
    return q


def test_every_metric_of_the_specification_is_there_once_with_a_value(worked: Connection) -> None:
    worked.make_queue("other", consumers=("c", "d"))
    found = worked.rows("select metric_name, metric_type, labels::text from pgque.otel_metrics()")
    assert {row[:2] for row in found} >= SPECIFIED
    assert len({(name, labels) for name, _, labels in found}) == len(found)
    assert worked.rows("select * from pgque.otel_metrics() where value is null") == []


def test_the_lag_is_the_age_of_the_first_event_that_waits(q: Connection) -> None:
    def lag() -> int:
        return round(float(metric(q, "pgque.consumer.lag_seconds", "c", "q")) / 100) * 100

    for _ in range(2):
        q.tick()
        age_ticks(q, "1 hour")
    assert lag() == 0  # nothing waits
    q.send("a")
    assert lag() == 0  # a new event, after two quiet hours
    age_events(q, "20 minutes")
    assert lag() == 1200  # no ticker runs
    assert metric(q, "pgque.consumer.pending_events", "c", "q") == 1
    assert metric(q, "pgque.queue.last_tick_age_seconds", "q") == 3600
    assert metric(q, "pgque.health", "ticker_running", "q") == 3
    q.tick()
    assert metric(q, "pgque.health", "ticker_running", "q") == 0
    assert lag() == 1200
    batch = q.value("select batch_id from pgque.receive('q', 'c')")
    q.value("select pgque.nack_batch(%s, '{1}', '0')", batch)
    q.finish(batch)
    q.value("select pgque.maint_retry_events()")
    age_ticks(q, "1 hour")
    q.tick()
    assert lag() == 3600  # an event that is delivered again has its old time


def test_the_documented_queries_give_what_their_collectors_ask_for(worked: Connection) -> None:
    text = (SQL.parent / "docs/observability.md").read_text()
    (otel,) = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.S))
    asked = [
        (query["sql"], [metric["value_column"], *metric["attribute_columns"]])
        for query in otel["receivers"]["sqlquery/pgque"]["queries"]
        for metric in query["metrics"]
    ]
    for sql, columns in asked:
        cursor = worked.execute(sql.encode())
        assert set(columns) <= {column.name for column in cursor.description or ()}
        assert cursor.fetchall() != []
    assert len(asked) == 2


class TestCounting:
    def test_an_event_counts_when_sent_and_when_its_batch_ends(self, worked: Connection) -> None:
        assert (counters(worked), consumer_counters(worked)) == ((5, 5, 1, 2), (5, 1, 2))
        worked.send("new")
        assert counters(worked) == (6, 5, 1, 2)
        batch = worked.open_batch()
        assert counters(worked) == (6, 5, 1, 2)
        worked.finish(batch)
        assert counters(worked) == (6, 6, 1, 2)

    def test_a_batch_that_fails_twice_counts_once(self, q: Connection) -> None:
        batch = q.open_batch("a", "b")
        undone = q.another()
        with undone.transaction(force_rollback=True):
            undone.value("select pgque.nack_batch(%s, '{1}')", batch)
        assert counters(q) == (2, 0, 0, 0)
        for _ in range(2):
            q.value("select pgque.nack_batch(%s, '{1}')", batch)
            q.value("select pgque.dead_letter_batch(%s, '{2}', 'bad')", batch)
        assert counters(q) == (2, 0, 1, 1)
        q.value("select pgque.set_queue_config('q', 'max_retries', '0')")
        q.finish(batch)
        q.value("select pgque.nack_batch(%s, '{3}')", q.open_batch("c"))
        assert counters(q) == (3, 2, 1, 2), "retries that are used up count as given up"

    def test_every_way_to_schedule_a_retry_counts(self, q: Connection) -> None:
        batch = q.open_batch(*"abcd")
        q.value("select pgque.event_retry(%s, 1, 3600)", batch)
        second = "(select m from pgque.receive('q', 'c') m where m.msg_id = 2)"
        q.value(f"select pgque.nack(%s, {second})", batch)
        raw = "'q', 'c', now(), 9, now(), 0, 't', 'x', null, null, null, null"
        q.value(f"select pgque.event_retry_raw({raw})")
        q.value("select pgque.batch_retry(%s, 3600)", batch)
        assert counters(q)[2] == 5

    def test_a_subconsumers_batch_counts_for_the_main_one_at_its_end(self, db: Connection) -> None:
        queue_with_ticks(db, "a", "b")
        first, _ = next_of(db, "w1"), next_of(db, "w2")
        db.value("select pgque.dead_letter_batch(%s, '{1}', 'bad')", first)
        assert counters(db) == (2, 0, 0, 1)
        db.finish(first)
        assert counters(db) == (2, 1, 0, 1)

    def test_the_quantiles_tell_the_size_of_batches(self, q: Connection) -> None:
        for count in (1, 3, 5):
            q.finish(q.open_batch(*"x" * count))
        assert metric(q, "pgque.batch.size", "c", "0.5", "q") == 3

    def test_the_processing_time_runs_from_opening_to_the_end(self, q: Connection) -> None:
        batch = q.open_batch("x")
        q.execute("update pgque.position_log set sub_active = now() - interval '100 s'")
        q.finish(batch)
        assert 99 < metrics(q, "pgque.processing_latency_seconds")["c", "0.5", "q"] < 130


class TestNeverDown:
    """Each counter is compared before and after."""

    def test_maintenance_and_installing_again(self, worked: Connection) -> None:
        for _ in range(3):
            worked.tick()
            worked.drain()
            worked.rotate()
        assert counters(worked) == (5, 5, 1, 2)
        worked.bloat_ticks(2100)
        worked.drain()
        assert worked.compact_positions() > 0 and worked.compact_ticks() > 0
        assert (counters(worked), consumer_counters(worked)) == ((5, 5, 1, 2), (5, 1, 2))
        worked.execute((SQL / "pgque.sql").read_bytes())
        assert (counters(worked), consumer_counters(worked)) == ((5, 5, 1, 2), (5, 1, 2))

    def test_compaction_of_counters(self, worked: Connection) -> None:
        assert worked.value("select pgque.maint_compact_counters()") == 0  # too few
        worked.value("select pgque.register_consumer('q', 'other')")
        assert compact_counters(worked) > 3900
        assert worked.value("select count(*) from pgque.counter_log") == 2
        assert (counters(worked), consumer_counters(worked)) == ((5, 5, 1, 2), (5, 1, 2))
        work(worked)
        assert (counters(worked), consumer_counters(worked)) == ((10, 10, 2, 4), (10, 2, 4))

    def test_delivery_of_retries_purge_and_replay(self, worked: Connection) -> None:
        """Retries that move together draw one id."""
        worked.execute("update pgque.retry_queue set ev_retry_after = now()")
        worked.value("select pgque.maint_retry_events()")
        worked.value("select pgque.ticker()")
        worked.drain()
        assert counters(worked) == (6, 6, 1, 2)
        first = worked.value("select min(dl_id) from pgque.dead_letter")
        worked.value("select pgque.dlq_replay(%s)", first)
        worked.value("select pgque.dlq_purge('q', '0')")
        assert metric(worked, "pgque.message.dead_lettered", "q") == 0
        assert counters(worked) == (7, 6, 1, 2)

    def test_a_move_back_and_forth(self, worked: Connection) -> None:
        newest = worked.last_tick()
        for position in (1, newest, 1):
            worked.value("select pgque.register_consumer_at('q', 'c', %s)", position)
        assert counters(worked) == (5, 5, 1, 2)
        worked.drain()
        assert counters(worked) == (5, 10, 1, 2)

    def test_the_end_of_a_consumer(self, worked: Connection) -> None:
        worked.open_batch("never finished")
        worked.value("select pgque.unregister_consumer('q', 'c')")
        assert (counters(worked), consumer_counters(worked)) == ((6, 5, 1, 2), None)
        worked.value("select pgque.register_consumer('q', 'c')")
        assert (counters(worked), consumer_counters(worked)) == ((6, 5, 1, 2), (0, 0, 0))
        assert compact_counters(worked) > 0
        assert counters(worked) == (6, 5, 1, 2)

    def test_the_end_of_a_subconsumer(self, db: Connection) -> None:
        queue_with_ticks(db, "a", "b")
        db.finish(next_of(db, "w1"))
        next_of(db, "w2")
        db.value("select pgque.unregister_subconsumer('q', 'c', 'w2', 1)")
        assert counters(db) == (2, 2, 1, 0)

    def test_a_dead_subconsumers_batch_counts_once(self, db: Connection) -> None:
        queue_with_ticks(db, "a")
        next_of(db, "w1")
        db.value("select pgque.next_batch('q', 'c', 'w2', '0')")
        assert counters(db) == (1, 0, 0, 0)
        assert work_off(db, "w2") == ["a"]
        assert counters(db) == (1, 1, 0, 0)

    def test_a_batch_that_ends_with_its_consumer(self, q: Connection) -> None:
        batch = q.open_batch("a", "b")
        worker = q.another()
        with worker.transaction():
            worker.finish(batch)
            ending = q.blocked(Connection.value, "select pgque.unregister_consumer('q', 'c')")
        assert (ending.result(), counters(q)) == (1, (2, 2, 0, 0))

    def test_adoption_after_a_restore(self, worked: Connection) -> None:
        worked.publish("x", "y")
        before = counters(worked)
        worked.execute("refresh materialized view pgque.origin with no data")  # as pg_restore
        worked.execute("refresh materialized view pgque.origin")
        worked.value("select pgque.adopt_restored_database()")
        assert before <= counters(worked)
        worked.value("select pgque.ticker()")
        assert (worked.drain(), counters(worked)) == (["x", "y"], (7, 7, 1, 2))

    def test_a_dropped_queue_begins_at_0(self, worked: Connection) -> None:
        bloat_counters(worked)
        worked.value("select pgque.drop_queue('q', true)")
        assert worked.value("select pgque.maint_compact_counters()") > 0
        assert worked.rows("select queue_id from pgque.counter_log") == []
        assert counters(worked) == (0, 0, 0, 0)
        worked.make_queue()
        work(worked)
        assert counters(worked) == (5, 5, 1, 2)


class TestCompaction:
    def test_maintenance_does_it_at_intervals(self, worked: Connection) -> None:
        bloat_counters(worked)
        worked.value("select pgque.maint()")
        assert worked.value("select count(*) from pgque.counter_log") < 10
        switched = "select log_name from pgque.log_rotation where rotated_at is not null"
        assert worked.rows(switched) == [("counter",)]

    def test_an_older_one_sees_the_numbers_of_its_time(self, worked: Connection) -> None:
        old = worked.another().hold_snapshot()
        work(worked)
        assert compact_counters(worked) > 0
        assert (counters(old)[1:], counters(worked)) == ((5, 1, 2), (10, 10, 2, 4))
