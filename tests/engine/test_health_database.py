"""Health of the database: its scheduler, its tables, and the transactions that hold it up."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.metrics import age_ticks, health
from tests.support.queues import (
    Connection,
    bloat_ticks,
    connect,
    make_queue,
    rotate,
    rows,
    send,
    value,
)

INSTALL = (Path(__file__).parents[2] / "sql/pgque.sql").read_bytes()

Another = Callable[[], Connection]


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
        send(db, "a")
        table = value(db, "select format('%s_1', queue_data_pfx) from pgque.queue")
        db.execute("update pgque.queue set queue_switch_time = now() - interval '3 hours'")
        holder = another()
        with holder.transaction():
            rows(holder, f"select from {table}")
            assert f"session {holder.info.backend_pid}" in health(db)["rotation_health"][1]

    def test_logs_that_grow_are_named(self, db: Connection) -> None:
        make_queue(db)
        bloat_ticks(db, 200_000)
        db.execute("update pgque.config set installed_at = now()")  # it may be an older template's
        before = health(db, None)["log_rotation"][0]
        db.execute("update pgque.log_rotation set rotated_at = now() - interval '1 hour'")
        status, detail = health(db, None)["log_rotation"]
        assert (before, status) == ("ok", "warning")
        assert "pgque.maint()" in detail

    def test_logs_that_somebody_keeps_locked_name_him(
        self, db: Connection, another: Another
    ) -> None:
        make_queue(db)
        bloat_ticks(db, 200_000)
        db.execute("update pgque.log_rotation set rotated_at = now() - interval '1 hour'")
        holder = another()
        holder.execute("begin")
        rows(holder, "select from pgque.tick limit 1")
        deadline = time.monotonic() + 60
        while "session" not in health(db, None)["log_rotation"][1]:
            assert time.monotonic() < deadline, "health does not name the session"
            time.sleep(0.5)
        assert f"session {holder.info.backend_pid}" in health(db, None)["log_rotation"][1]
        holder.execute("rollback")
