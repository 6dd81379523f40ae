"""Health: what is wrong with queues, consumers and the database, and what to do about it."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.metrics import age_positions, age_ticks, health
from tests.support.queues import (
    Connection,
    bloat_ticks,
    connect,
    drain,
    make_queue,
    open_batch,
    queue_id,
    rotate,
    rows,
    send,
    tick,
    value,
)
from tests.support.workers import next_of, queue_with_ticks

INSTALL = (Path(__file__).parents[2] / "sql/pgque.sql").read_bytes()

Another = Callable[[], Connection]


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
        db.execute("delete from pgque.tick")
        assert health(db)["ticker_running"][0] == "critical"


class TestRotation:
    @pytest.mark.parametrize(
        ("age", "status"), [("3 hours", "ok"), ("5 hours", "warning"), ("9 hours", "critical")]
    )
    def test_it_is_expected_within_its_period(self, db: Connection, age: str, status: str) -> None:
        make_queue(db)
        db.execute("update pgque.queue set queue_switch_time = now() - %s::interval", [age])
        found, detail = health(db)["rotation_health"]
        assert (found, "pgque.maint()" in detail) == (status, status != "ok")

    def test_the_consumer_that_holds_it_up_is_named(self, db: Connection) -> None:
        make_queue(db, consumers=("fast", "slow"))
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


class TestDatabase:
    def test_without_a_scheduler_recent_ticks_are_enough(self, db: Connection) -> None:
        make_queue(db)
        assert health(db, None)["scheduler"][0] == "ok"

    def test_without_a_scheduler_and_without_ticks_there_is_a_warning(self, db: Connection) -> None:
        make_queue(db)
        make_queue(db, "other")
        age_ticks(db, "1 hour")
        before = health(db, None)["scheduler"][0]
        age_ticks(db, "1 hour", "other")
        status, detail = health(db, None)["scheduler"]
        assert (before, status) == ("ok", "warning")
        assert "pgque.start()" in detail

    def test_a_scheduler_that_does_not_tick_is_critical(self, db: Connection) -> None:
        make_queue(db)
        db.execute("update pgque.config set scheduler = 'pg_cron'")
        before = health(db, None)["scheduler"][0]
        age_ticks(db, "1 hour")
        status, detail = health(db, None)["scheduler"]
        assert (before, status) == ("ok", "critical")
        assert "pg_cron" in detail

    def test_paused_and_external_queues_need_no_scheduler(self, db: Connection) -> None:
        make_queue(db, ticker_paused="true")
        make_queue(db, "external", external_ticker="true")
        age_ticks(db, "1 hour")
        age_ticks(db, "1 hour", "external")
        assert health(db, None)["scheduler"][0] == "ok"

    def test_a_restored_database_is_critical_until_it_is_adopted(self, db: Connection) -> None:
        make_queue(db)
        db.execute("refresh materialized view pgque.origin with no data")  # as pg_restore
        db.execute("refresh materialized view pgque.origin")
        before = health(db, None)["restored_database"][0]
        value(db, "select pgque.adopt_restored_database()")
        assert (before, health(db, None)["restored_database"][0]) == ("critical", "ok")


class TestXminHorizon:
    def test_an_open_transaction_shows(self, db: Connection, another: Another) -> None:
        holder = another()
        with holder.transaction():
            value(holder, "select pg_current_xact_id()::text")
            status, detail = health(db, None)["xmin_horizon"]
            assert status == "ok"
            assert f"session {holder.info.backend_pid} " in detail

    def test_transactions_of_other_databases_do_not(self, db: Connection, server: Any) -> None:
        with connect(server.url) as elsewhere, elsewhere.transaction():
            value(elsewhere, "select pg_current_xact_id()::text")
            assert (
                f"session {elsewhere.info.backend_pid} " not in health(db, None)["xmin_horizon"][1]
            )

    @pytest.mark.parametrize(
        ("age", "status"), [("1 minute", "ok"), ("20 minutes", "warning"), ("2 hours", "critical")]
    )
    def test_the_longer_it_is_open_the_worse(
        self, db: Connection, another: Another, age: str, status: str
    ) -> None:
        """The clock cannot be turned, so the view is told that transactions began earlier."""
        text = value(db, "select pg_get_viewdef('pgque.xmin_holder'::regclass)")
        aged = text.replace("a.xact_start AS since", f"a.xact_start - '{age}'::interval AS since")
        assert aged != text
        db.execute(f"create or replace view pgque.xmin_holder as {aged}".encode())
        holder = another()
        with holder.transaction():
            value(holder, "select pg_current_xact_id()::text")
            found, detail = health(db, None)["xmin_horizon"]
            assert found == status
            assert (f"pg_terminate_backend({holder.info.backend_pid})" in detail) == (
                status != "ok"
            )

    @pytest.fixture
    def owned(self, server: Any, template_database: str) -> Iterator[tuple[Connection, str]]:
        """A database installed by its owner, who is no superuser."""
        with connect(server.url) as main:
            main.execute("create role t_owner login createrole")
            main.execute("create database t_owned owner t_owner")
            url = server.database_url("t_owned")
            try:
                with connect(url) as db:
                    db.execute("set session authorization t_owner")
                    db.execute(INSTALL)
                    yield db, url
            finally:
                main.execute("drop database t_owned with (force)")
                main.execute("drop role t_owner")

    def test_an_owner_who_may_not_see_others_says_that_he_does_not_know(
        self, owned: tuple[Connection, str]
    ) -> None:
        db, url = owned
        with connect(url) as holder, holder.transaction():
            value(holder, "select pg_current_xact_id()::text")
            status, detail = health(db, None)["xmin_horizon"]
            assert status == "unknown"
            assert "grant pg_read_all_stats to t_owner" in detail

    def test_an_owner_who_may_see_others_knows(self, owned: tuple[Connection, str]) -> None:
        db, url = owned
        with connect(url) as holder:
            holder.execute("grant pg_read_all_stats to t_owner")
            with holder.transaction():
                value(holder, "select pg_current_xact_id()::text")
                assert health(db, None)["xmin_horizon"][0] == "ok"


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


class TestGrowth:
    def test_a_table_that_a_loader_keeps_filling_is_named(self, db: Connection) -> None:
        make_queue(db)
        table = value(db, "select format('%s_1', queue_data_pfx) from pgque.queue")
        db.execute(
            f"insert into {table} (ev_type, ev_data, ev_time)"
            " select 't', repeat('x', 100), now() - interval '1 day'"
            " from generate_series(1, 2000)".encode()
        )
        rotate(db)
        value(db, "select pgque.set_queue_config('q', 'rotation_period', '1 hour')")
        status, detail = health(db)[f"left_table:{table}"]
        assert (status, "pgque.current_event_table('q')" in detail) == ("warning", True)

    def test_rotation_that_waits_for_unread_events_in_both_tables_names_one(
        self, db: Connection
    ) -> None:
        make_queue(db, rotation_period="1 hour")
        for number in (1, 2):
            table = value(
                db, "select queue_data_pfx || '_' || %s::integer from pgque.queue", number
            )
            db.execute(f"insert into {table} (ev_type) values ('t')".encode())
        db.execute("update pgque.queue set queue_switch_time = now() - interval '3 hours'")
        assert "current_event_table" in health(db)["rotation_health"][1]

    def test_rotation_that_waits_for_a_transaction_names_it(
        self, db: Connection, another: Another
    ) -> None:
        make_queue(db, rotation_period="1 hour")
        table = value(db, "select format('%s_1', queue_data_pfx) from pgque.queue")
        db.execute("update pgque.queue set queue_switch_time = now() - interval '3 hours'")
        holder = another()
        with holder.transaction():
            rows(holder, f"select from {table}")
            assert f"session {holder.info.backend_pid}" in health(db)["rotation_health"][1]

    def test_logs_that_grow_are_named(self, db: Connection) -> None:
        make_queue(db)
        bloat_ticks(db, 200_000)
        before = health(db, None)["log_rotation"][0]
        db.execute("update pgque.config set metadata_rotated_at = now() - interval '1 hour'")
        status, detail = health(db, None)["log_rotation"]
        assert (before, status) == ("ok", "warning")
        assert "pgque.maint()" in detail

    def test_logs_that_somebody_keeps_locked_name_him(
        self, db: Connection, another: Another
    ) -> None:
        make_queue(db)
        bloat_ticks(db, 200_000)
        db.execute("update pgque.config set metadata_rotated_at = now() - interval '1 hour'")
        holder = another()
        holder.execute("begin")
        rows(holder, "select from pgque.tick limit 1")
        deadline = time.monotonic() + 60
        while "session" not in health(db, None)["log_rotation"][1]:
            assert time.monotonic() < deadline, "health does not name the session"
            time.sleep(0.5)
        assert f"session {holder.info.backend_pid}" in health(db, None)["log_rotation"][1]
        holder.execute("rollback")
