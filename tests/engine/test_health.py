"""Health of queues and consumers: what is wrong, and what to do about it."""

import pytest

from tests.support.metrics import age_positions, age_ticks, health
from tests.support.queues import (
    Connection,
    drain,
    make_queue,
    open_batch,
    queue_id,
    rows,
    send,
    tick,
    value,
)
from tests.support.workers import next_of, queue_with_ticks


def test_an_empty_database_is_well(db: Connection) -> None:
    found = rows(db, "select queue_name, check_name, status from pgque.queue_health()")
    assert found == [
        (None, "log_rotation", "ok"),
        (None, "restored_database", "ok"),
        (None, "scheduler", "ok"),
        (None, "xmin_horizon", "ok"),
    ]


def test_a_new_queue_is_well(db: Connection) -> None:
    make_queue(db)
    assert {name: status for name, (status, _) in health(db).items()} == {
        "consumer_lag:c": "ok",
        "dlq_health": "ok",
        "held_batch:c": "ok",
        "lease_health": "ok",
        "retry_backlog": "ok",
        "rotation_health": "ok",
        "ticker_running": "ok",
    }


def test_a_queue_without_consumers_is_well(db: Connection) -> None:
    make_queue(db, consumers=())
    assert {status for status, _ in health(db).values()} == {"ok"}


def test_each_queue_has_its_own_rows(db: Connection) -> None:
    make_queue(db)
    make_queue(db, "late")
    age_ticks(db, "1 hour", "late")
    assert health(db)["ticker_running"][0] == "ok"
    assert health(db, "late")["ticker_running"][0] == "critical"


def test_names_with_quotes_and_other_scripts_come_through(db: Connection) -> None:
    queue, consumer = "q'\"\\ {} %s été", "c'\"\\ %s 世界"
    make_queue(db, queue, consumers=(consumer,))
    tick(db, queue)
    age_ticks(db, "1 day", queue)
    tick(db, queue)
    status, detail = health(db, queue)[f"consumer_lag:{consumer}"]
    assert status == "critical"
    remedy = detail.partition("with ")[2]
    db.execute(remedy.encode())
    assert rows(db, "select * from pgque.consumer_stats()") == []


class TestTicker:
    @pytest.mark.parametrize(
        ("age", "status"), [("1 minute", "ok"), ("3 minutes", "warning"), ("7 minutes", "critical")]
    )
    def test_ticks_are_expected_within_the_idle_period(
        self, db: Connection, age: str, status: str
    ) -> None:
        make_queue(db)
        age_ticks(db, age)
        assert health(db)["ticker_running"][0] == status

    def test_a_longer_idle_period_leaves_more_time(self, db: Connection) -> None:
        make_queue(db, ticker_idle_period="1 hour")
        age_ticks(db, "1 hour 59 minutes")
        assert health(db)["ticker_running"][0] == "ok"

    def test_a_paused_queue_is_no_alarm_but_says_how_to_resume(self, db: Connection) -> None:
        make_queue(db, ticker_paused="true")
        age_ticks(db, "1 day")
        status, detail = health(db)["ticker_running"]
        assert (status, "paused" in detail) == ("warning", True)
        assert health(db)["consumer_lag:c"][0] == "ok"
        db.execute(detail.partition("with ")[2].encode())
        assert value(db, "select queue_ticker_paused from pgque.queue") is False

    def test_a_queue_that_waits_for_an_external_ticker_says_so(self, db: Connection) -> None:
        make_queue(db, external_ticker="true")
        age_ticks(db, "1 hour")
        status, detail = health(db)["ticker_running"]
        assert (status, "external ticker" in detail) == ("critical", True)

    def test_a_queue_without_any_tick_is_critical(self, db: Connection) -> None:
        make_queue(db)
        db.execute("delete from pgque.tick_log")
        assert health(db)["ticker_running"][0] == "critical"


class TestRotation:
    @pytest.mark.parametrize(
        ("age", "status"), [("3 hours", "ok"), ("5 hours", "warning"), ("9 hours", "critical")]
    )
    def test_it_is_expected_within_its_period(self, db: Connection, age: str, status: str) -> None:
        make_queue(db)
        db.execute("update pgque.queue set queue_switch_time = now() - %s::interval", [age])
        assert health(db)["rotation_health"][0] == "ok"
        open_batch(db, "a")
        found, detail = health(db)["rotation_health"]
        assert (found, "pgque.maint()" in detail) == (status, status != "ok")

    def test_the_consumer_that_holds_it_up_is_named(self, db: Connection) -> None:
        make_queue(db, consumers=("fast", "slow"))
        send(db, "a")
        tick(db)
        drain(db, consumer="fast")
        age_ticks(db, "5 hours")
        db.execute("update pgque.queue set queue_switch_time = now() - interval '5 hours'")
        tick(db)
        status, detail = health(db)["rotation_health"]
        assert status == "warning" and '"slow"' in detail and '"fast"' not in detail


class TestDeadLettersAndRetries:
    def test_thousands_of_dead_letters_are_a_warning(self, db: Connection) -> None:
        make_queue(db)
        value(db, "select pgque.send_batch('q', array_fill('x'::text, '{3000}'))")
        batch = open_batch(db, "last")
        ids = "array(select generate_series(%s::bigint, %s))"
        value(db, f"select pgque.dead_letter_batch(%s, {ids}, 'bad')", batch, 1, 1000)
        before = health(db)["dlq_health"][0]
        value(db, f"select pgque.dead_letter_batch(%s, {ids}, 'bad')", batch, 1001, 3001)
        status, detail = health(db)["dlq_health"]
        assert (before, status) == ("ok", "warning")
        assert detail.startswith("3001 dead letters")

    @pytest.mark.parametrize(
        ("age", "status"), [("1 minute", "ok"), ("10 minutes", "warning"), ("2 hours", "critical")]
    )
    def test_retries_that_are_due_and_stay_are_an_alarm(
        self, db: Connection, age: str, status: str
    ) -> None:
        make_queue(db)
        value(db, "select pgque.nack_batch(%s, '{1}', '0')", open_batch(db, "a"))
        db.execute("update pgque.retry_queue set ev_retry_after = now() - %s::interval", [age])
        found, detail = health(db)["retry_backlog"]
        assert found == status and detail.startswith("1 retries are due")

    def test_retries_for_later_are_not(self, db: Connection) -> None:
        make_queue(db)
        value(db, "select pgque.nack_batch(%s, '{1}', '1 hour')", open_batch(db, "a"))
        assert health(db)["retry_backlog"] == ("ok", "no retry is due")

    def test_a_closed_queue_is_named_as_the_reason(self, db: Connection) -> None:
        make_queue(db)
        value(db, "select pgque.nack_batch(%s, '{1}', '0')", open_batch(db, "a"))
        db.execute("update pgque.retry_queue set ev_retry_after = now() - interval '10 minutes'")
        value(db, "select pgque.set_queue_config('q', 'disable_insert', 'true')")
        assert "disable_insert" in health(db)["retry_backlog"][1]


class TestConsumers:
    @pytest.mark.parametrize(
        ("age", "status"),
        [("50 minutes", "ok"), ("90 minutes", "warning"), ("3 hours", "critical")],
    )
    def test_lag_is_measured_against_the_rotation_period(
        self, db: Connection, age: str, status: str
    ) -> None:
        make_queue(db)
        send(db, "a")
        age_ticks(db, age)
        tick(db)
        found, detail = health(db)["consumer_lag:c"]
        assert found == status and "1 events" in detail

    def test_a_consumer_at_the_last_tick_has_no_lag_however_old_it_is(self, db: Connection) -> None:
        make_queue(db)
        age_ticks(db, "1 day")
        assert health(db)["consumer_lag:c"][0] == "ok"

    def test_a_subconsumer_that_keeps_its_batch_is_named(self, db: Connection) -> None:
        queue_with_ticks(db, "a")
        next_of(db, "w1")
        age_ticks(db, "3 hours")
        found = health(db)
        assert found["consumer_lag:c.w1"][0] == "critical"
        assert found["consumer_lag:c"][0] == "ok"

    def test_an_idle_subconsumer_is_well(self, db: Connection) -> None:
        queue_with_ticks(db)
        assert health(db)["consumer_lag:c.w1"] == ("ok", "has no batch")

    @pytest.mark.parametrize(("age", "status"), [("1 s", "ok"), ("1 hour", "warning")])
    def test_a_batch_whose_lease_ran_out_wants_a_worker(
        self, db: Connection, age: str, status: str
    ) -> None:
        make_queue(db)
        send(db, "a")
        tick(db)
        value(db, "select batch_id from pgque.claim_batch('q', 'c', 'the worker', '1 minute')")
        age_positions(db, age)
        found, detail = health(db)["lease_health"]
        assert (found, '"the worker"' in detail) == (status, status != "ok")

    def test_a_lease_that_was_acked_is_no_concern(self, db: Connection) -> None:
        make_queue(db)
        send(db, "a")
        tick(db)
        value(db, "select batch_id from pgque.claim_batch('q', 'c', 'me', '1 minute')")
        value(db, "select pgque.ack_batch(1, 'me', 1)")
        age_positions(db, "1 hour")
        assert health(db)["lease_health"][0] == "ok"

    def test_a_slot_without_a_batch_that_nobody_works_on_is_no_concern(
        self, db: Connection
    ) -> None:
        make_queue(db, consumers=())
        value(db, "select pgque.subscribe_slot('q', 'c', 0, 1)::text")
        value(db, "select pgque.claim_slot('q', 'c', 0, 'the worker')")
        age_positions(db, "1 hour")
        assert health(db)["lease_health"][0] == "ok"


def test_the_detail_of_what_is_wrong_always_says_what_to_do(db: Connection) -> None:
    make_queue(db)
    value(db, "select pgque.nack_batch(%s, '{1}', '0')", open_batch(db, "a"))
    db.execute("update pgque.retry_queue set ev_retry_after = now() - interval '1 day'")
    tick(db)
    age_ticks(db, "1 day")
    db.execute("update pgque.queue set queue_switch_time = now() - interval '1 day'")
    wrong = rows(
        db,
        "select check_name, detail from pgque.queue_health() where status <> 'ok' order by 1",
    )
    assert [name for name, _ in wrong] == [
        "consumer_lag:c",
        "retry_backlog",
        "rotation_health",
        "scheduler",
        "ticker_running",
    ]
    assert all("pgque." in detail for _, detail in wrong), wrong
    assert queue_id(db) > 0
