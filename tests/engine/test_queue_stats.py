"""Statistics: queues and consumers at a glance, open batches, stuck consumers, unticked events."""

from datetime import timedelta
from typing import Any

from tests.support.queues.metrics import age_events, age_positions, age_ticks, health
from tests.support.queues.sql import Connection, refused
from tests.support.queues.workers import next_of, queue_with_ticks

HOUR = timedelta(hours=1)
ALMOST = timedelta(minutes=59)


def stats(db: Connection, of: str, name: str) -> dict[str, Any]:
    cursor = db.execute(f"select * from pgque.{of}_stats() where {of}_name = %s".encode(), [name])
    names = [column.name for column in cursor.description or ()]
    (row,) = cursor.fetchall()
    return dict(zip(names, row, strict=True))


def queue_stats(db: Connection, queue: str = "q") -> dict[str, Any]:
    return stats(db, "queue", queue)


def consumer_stats(db: Connection, consumer: str = "c") -> dict[str, Any]:
    return stats(db, "consumer", consumer)


def stuck(db: Connection, threshold: str = "1 hour") -> list[str]:
    found = db.rows("select consumer_name from pgque.stuck_consumers(%s)", threshold)
    return [name for (name,) in found]


def test_an_empty_database_has_no_statistics(db: Connection) -> None:
    for call in ("queue_stats()", "consumer_stats()", "stuck_consumers()"):
        assert db.rows(f"select * from pgque.{call}") == []


class TestQueues:
    def test_a_new_queue_without_consumers_is_empty(self, bare: Connection) -> None:
        found = queue_stats(bare)
        del found["queue_id"], found["rotation_age"], found["last_tick_time"]
        assert found == {
            "queue_name": "q",
            "depth": 0,
            "oldest_msg_age": None,
            "consumers": 0,
            "events_per_sec": 0,
            "cur_table": 0,
            "rotation_period": timedelta(hours=2),
            "ticker_paused": False,
            "last_tick_id": 1,
            "dlq_count": 0,
        }

    def test_the_depth_is_that_of_the_slowest_even_of_a_paused_queue(self, db: Connection) -> None:
        db.make_queue(consumers=("fast", "slow"))
        db.finish(db.open_batch("a", "b", consumer="fast"))
        db.value("select pgque.pause_queue('q')")
        db.send("not ticked yet")
        batch = db.next_batch(consumer="slow")
        found = queue_stats(db)
        assert (found["depth"], found["ticker_paused"], found["dlq_count"]) == (3, True, 0)
        db.value("select pgque.dead_letter_batch(%s, '{1}', 'bad')", batch)
        db.finish(batch)
        found = queue_stats(db)
        assert (found["depth"], found["dlq_count"]) == (1, 1)

    def test_a_subconsumers_open_batch_is_not_finished(self, db: Connection) -> None:
        queue_with_ticks(db, "a", "b")
        next_of(db, "w1")
        assert (queue_stats(db)["depth"], queue_stats(db)["consumers"]) == (2, 1)

    def test_the_oldest_message_is_as_old_as_its_event(self, q: Connection) -> None:
        q.tick()
        age_ticks(q, "1 hour")
        assert queue_stats(q)["oldest_msg_age"] is None
        q.send("a")
        age_events(q, "2 minutes")
        q.send("younger")
        for _ in range(2):
            assert 120 < queue_stats(q)["oldest_msg_age"].total_seconds() < 150
            q.tick()

    def test_the_oldest_message_may_be_older_than_the_tick(self, q: Connection) -> None:
        with (writer := q.another()).transaction():
            writer.send("slow")
            q.tick()
        age_events(q, "1 hour")
        q.send("quick")
        assert HOUR < queue_stats(q)["oldest_msg_age"] < 2 * HOUR

    def test_the_rate_is_that_between_the_last_two_ticks(self, q: Connection) -> None:
        q.tick()
        age_ticks(q, "10 s")
        q.publish(*"abcdefghij")
        assert 0.3 < queue_stats(q)["events_per_sec"] <= 1

    def test_positions_of_a_queue_whose_ticks_are_gone_are_unknown(self, q: Connection) -> None:
        assert q.last_tick() == 1
        q.execute("delete from pgque.tick_log")
        assert (queue_stats(q)["depth"], queue_stats(q)["last_tick_id"]) == (0, None)
        assert consumer_stats(q)["lag"] is None


class TestConsumers:
    def batch_of(self, db: Connection) -> tuple[Any, ...]:
        found = consumer_stats(db)
        return found["pending_events"], found["batch_active"], found["batch_id"]

    def test_an_open_batch_shows_since_when(self, q: Connection) -> None:
        age_ticks(q, "1 hour")
        batch = q.open_batch("a", "b")
        assert ALMOST < consumer_stats(q)["lag"] < 2 * HOUR
        age_positions(q, "1 hour")
        assert self.batch_of(q) == (2, True, batch)
        age = q.value("select now() - %s", consumer_stats(q)["last_batch_start"])
        assert ALMOST < age < 2 * HOUR
        q.finish(batch)
        assert self.batch_of(q) == (0, False, None)

    def test_a_renewed_lease_does_not_make_the_batch_younger(self, q: Connection) -> None:
        q.publish("a")
        claim = "select batch_id, epoch from pgque.claim_batch('q', 'c', 'me', '3 hours')"
        ((batch, epoch),) = q.rows(claim)
        age_positions(q, "1 hour")
        q.value("select pgque.renew_batch(%s, 'me', %s)", batch, epoch)
        assert q.value("select now() - %s", consumer_stats(q)["last_batch_start"]) > ALMOST

    def test_a_subconsumer_has_its_batch_before_it_and_nothing_else(self, db: Connection) -> None:
        queue_with_ticks(db, "a", "b", "c")
        before = consumer_stats(db, "c.w1")
        next_of(db, "w1")
        assert (before["lag"], before["pending_events"]) == (None, None)
        pending = [consumer_stats(db, name)["pending_events"] for name in ("c.w1", "c")]
        assert pending == [1, 2]


def test_each_open_batch_of_the_queue_shows_with_its_size_the_oldest_first(db: Connection) -> None:
    db.make_queue(consumers=("c", "d", "idle"))
    db.make_queue("other")
    db.open_batch("a", queue="other")
    columns = "consumer_name, batch_id, estimated_events, batch_age > '59 minutes'"
    in_flight = f"select {columns} from pgque.in_flight('q')"
    assert db.rows(in_flight) == []
    first = db.open_batch("a", "b", consumer="d")
    age_positions(db, "1 hour")
    second = db.next_batch()
    assert db.rows(in_flight) == [("d", first, 2, True), ("c", second, 2, False)]
    with refused("PQ005"):
        db.rows("select * from pgque.in_flight(null)")


class TestStuckConsumers:
    def test_a_consumer_that_never_came_for_its_ticks_is_stuck(self, q: Connection) -> None:
        age_ticks(q, "2 hours")
        age_positions(q, "3 hours")
        assert stuck(q) == []  # nothing to do
        q.tick()
        columns = "queue_name, consumer_name, lag, now() - last_active"
        ((*names, lag, silence),) = q.rows(f"select {columns} from pgque.stuck_consumers()")
        assert names == ["q", "c"]
        assert 2 * HOUR <= lag < 3 * HOUR <= silence
        assert (stuck(q, "170 minutes"), stuck(q, "190 minutes")) == (["c"], [])
        for threshold in (None, "-1 s"):
            with refused("PQ005"):
                q.rows("select * from pgque.stuck_consumers(%s::interval)", threshold)

    def test_a_batch_open_for_too_long_is_even_if_its_worker_is_alive(self, q: Connection) -> None:
        q.publish("a")
        claim = "select batch_id from pgque.claim_batch('q', 'c', %s, '1 hour')"
        q.value(claim, "me")
        age_positions(q, "2 hours")
        q.value(claim, "you")
        assert stuck(q) == ["c"]

    def test_a_subconsumer_that_died_with_a_batch_is_no_idle_one(self, db: Connection) -> None:
        queue_with_ticks(db)
        age_positions(db, "2 hours")
        assert stuck(db) == []
        db.publish("a")
        next_of(db, "w1")
        age_positions(db, "2 hours")
        assert stuck(db) == ["c.w1"]


FOUND = "select queue_name, events, waiting_since from pgque.unticked_events(%s)"


def test_events_that_no_tick_contains_are_counted_from_the_first(q: Connection) -> None:
    q.make_queue("idle")
    q.publish("ticked")
    with q.transaction(force_rollback=True):
        q.send("undone")
    assert q.rows(FOUND, None) == []
    q.tick()
    q.send("a", "b")
    sent_at = q.value("select min(ev_time) from pgque.event_1 where ev_data <> 'ticked'")
    assert q.rows(FOUND, None) == q.rows(FOUND, "q") == [("q", 2, sent_at)]
    assert q.rows(FOUND, "idle") == []
    with refused("PQ001"):
        q.rows(FOUND, "nosuch")


def test_an_event_from_before_the_tick_waits_since_it(q: Connection) -> None:
    with (writer := q.another()).transaction():
        writer.send("slow")
        q.tick()
    ticked_at = q.value("select max(tick_time) from pgque.tick")
    q.send("quick")
    assert q.rows(FOUND, None) == [("q", 1, ticked_at)]


def test_health_counts_a_paused_queues_events_as_lag(q: Connection) -> None:
    q.value("select pgque.pause_queue('q')")
    q.send("a")
    age_ticks(q, "30 minutes")
    found, detail = health(q)["consumer_lag:c"]  # without a look at the event, which is younger
    assert (found, detail.startswith("at most 00:30:0")) == ("ok", True)
    assert detail.endswith("behind, 1 events")
    age_ticks(q, "4 hours")
    age_events(q, "1 minute")
    found, detail = health(q)["consumer_lag:c"]
    assert (found, "0:01:0" in detail) == ("ok", True)
    age_events(q, "3 hours")
    found, detail = health(q)["consumer_lag:c"]
    assert (found, "see ticker_running" in detail) == ("critical", True)
    assert "1 events wait for a tick, the first for 03:01:0" in detail


def test_no_lock_on_events_is_kept_so_that_thousands_of_queues_fit(q: Connection) -> None:
    q.send("a")
    with q.transaction():
        for call in ("queue_stats()", "unticked_events(null)", "queue_health()"):
            q.rows(f"select * from pgque.{call}")
        locked = "select relation::regclass::text from pg_locks where pid = pg_backend_pid()"
        assert not {name for (name,) in q.rows(locked)} & {f"pgque.event_1_{nr}" for nr in "012"}
