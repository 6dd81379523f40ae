"""Keeping queues going without pg_cron, and taking everything away again.

What needs a real pg_cron is in test_pg_cron.py.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.queues.races import race
from tests.support.queues.sql import PATIENCE_SECONDS, Connection, refused
from tests.support.queues.workers import next_of, queue_with_ticks
from tests.support.servers.standbys import wait_for

MINUTES = {
    "pgque_ticker": ("* * * * *", "call pgque.ticker_loop('61.5 seconds')"),
    "pgque_maint": ("* * * * *", "call pgque.maint_loop('1 minute')"),
}
SECONDS = {
    "pgque_ticker": ("10 seconds", "call pgque.ticker_loop('11.5 seconds')"),
    "pgque_maint": ("30 seconds", "call pgque.maint_loop('30 seconds')"),
}


def status(db: Connection) -> dict[str, tuple[str, str]]:
    found = db.rows("select component, status, detail from pgque.status()")
    return {component: (state, detail) for component, state, detail in found}


class TestWithoutPgCron:
    def test_start_says_what_is_missing_and_what_to_do_instead(self, db: Connection) -> None:
        with refused("PQ019", "runs no pg_cron", "shared_preload_libraries", "pgque.maint()"):
            db.value("select pgque.start()::text")
        db.value("select pgque.stop()::text")  # which has nothing to do
        assert db.rows("select scheduler, ticker_job_id from pgque.config") == [(None, None)]

    def test_status_shows_the_parts(self, db: Connection) -> None:
        db.make_queue(consumers=("c", "d"))
        found = status(db)
        assert {part: state for part, (state, _) in found.items()} == {
            "postgresql": "ok",
            "pgque": "ok",
            "scheduler": "none",
            "ticks": "ok",
            "queues": "ok",
        }
        assert db.value("select pgque.version()") in found["pgque"][1]
        assert found["ticks"][1] == "every 100 ms at most"
        assert found["queues"][1] == "1, with 2 consumers"

    def test_status_names_queues_without_ticks(self, db: Connection) -> None:
        for queue in ("stuck", "paused", "ticked"):
            db.make_queue(queue, ticker_idle_period="1 minute")
        db.value("select pgque.set_queue_config('paused', 'ticker_paused', 'true')")
        db.execute("update pgque.tick_log set tick_time = tick_time - interval '3 minutes'")
        db.tick("ticked")
        assert status(db)["ticks"] == ("late", 'no tick for too long: "stuck"')


def test_jobs_count_seconds_where_pg_cron_does(db: Connection) -> None:
    for version in ("1.3", "1.4-1", "1.4.2", "1.5", "1.6", "1.10", "2.0-rc1", "unknown", None):
        found = db.rows("select * from pgque.cron_jobs(%s)", version)
        jobs = SECONDS if version in ("1.5", "1.6", "1.10", "2.0-rc1") else MINUTES
        assert {name: tuple(rest) for name, *rest in found} == jobs, version


class TestSlots:
    def test_slots_of_a_minute_go_by_the_clock_and_shorter_ones_do_not(
        self, db: Connection
    ) -> None:
        ends = {
            ("61.5 seconds", "09:30:00.01"): "09:31:01.5",
            ("61.5 seconds", "09:30:01.52"): "09:31:01.5",
            ("61.5 seconds", "09:30:59.9"): "09:31:01.5",
            ("1 minute", "09:30:20"): "09:31:00",
            ("11.5 seconds", "09:30:55"): "09:31:06.5",
            ("0", "09:30:55"): "09:30:55",
        }
        sql = "select (pgque.slot_end(('2026-01-01 ' || %s)::timestamptz, %s))::time::text"
        assert {each: db.value(sql, *reversed(each)) for each in ends} == ends

    @pytest.mark.parametrize("loop", ["ticker_loop", "maint_loop"])
    def test_a_slot_ends_when_the_jobs_are_taken_back(
        self, db: Connection, background: ThreadPoolExecutor, loop: str
    ) -> None:
        for slot in ("'-1 second'", "null"):
            with refused("PQ005", "a slot cannot"):
                db.execute(f"call pgque.{loop}({slot})".encode())
        assert db.value("select pgque.maint_pause()::text") == "00:00:10"
        db.execute("update pgque.log set half = 1")
        assert db.value("select pgque.maint_pause()::text") == "00:00:01"
        pause = "create or replace function pgque.maint_pause() returns interval language sql"
        db.execute(f"{pause} return interval '100 ms'".encode())
        db.execute("update pgque.config set ticker_job_id = 1")
        call = background.submit(db.another().execute, f"call pgque.{loop}('1 minute')".encode())
        wait_for(db, "select count(*) = 1 from pg_stat_activity where wait_event = 'PgSleep'")
        assert not call.done()
        db.execute("update pgque.config set ticker_job_id = null")
        call.result(timeout=PATIENCE_SECONDS)

    def test_a_failed_tick_does_not_end_the_slot_but_its_error_does_in_the_end(
        self, db: Connection
    ) -> None:
        db.make_queue(ticker_idle_period="0")
        db.value("select pgque.set_tick_period_ms(10)")
        before = db.last_tick()
        # What rolls back leaves the sequence as it is, so the third try succeeds.
        db.execute("create sequence tries")
        db.execute(
            "alter table pgque.tick_log add constraint no_ticks"
            " check (nextval('tries') > 2) not valid"
        )
        with refused("23514", "no_ticks"):
            db.execute("call pgque.ticker_loop('1.5 seconds')")
        assert db.last_tick() > before


class TestMaintenance:
    def test_a_step_that_fails_stops_no_other_and_is_told(self, db: Connection) -> None:
        db.make_queue(rotation_period="1 microsecond")
        batch = db.open_batch("a")
        (event,) = db.rows("select ev_id from pgque.get_batch_events(%s)", batch)[0]
        db.value("select pgque.nack_batch(%s, %s, '0')", batch, [event])
        db.finish(batch)
        db.execute(
            "create or replace function pgque.maint_rotate_tables_step1(i_queue_name text)"
            " returns integer language plpgsql as 'begin raise exception ''broken''; end'"
        )
        with refused("P0001", "pgque.maint_rotate_tables_step1: broken"):
            db.execute("call pgque.maint_loop('0')")
        assert db.received() == ["a"]

    def test_only_maintenance_functions_of_ours_are_run(self, db: Connection) -> None:
        for name in ("vacuum", "pg_sleep", "pgque.ticker", "public.maint_x"):
            assert db.value("select pgque.run_maintenance(%s, null)", name) == 0


class TestUninstalling:
    def uninstall(self, db: Connection, force: str = "") -> bool:
        """Returns whether everything is gone."""
        db.value(f"select pgque.uninstall({force})::text")
        return db.value("select to_regnamespace('pgque') is null")

    def test_unread_events_are_kept_and_their_queues_named(self, db: Connection) -> None:
        db.make_queue("read")
        db.make_queue("unread", consumers=("c", "late"))
        for queue in ("read", "unread"):
            db.publish("a", queue=queue)
            db.drain(queue)
        for force in ("", "null"):
            with refused("PQ020", 'yet: "unread"', "uninstall(true)"):
                self.uninstall(db, force)
        assert db.drain("unread", "late") == ["a"]
        with db.transaction(force_rollback=True):
            assert self.uninstall(db)
        db.send("that no tick has seen", queue="read")
        with refused("PQ020", '"read"'):
            self.uninstall(db)
        assert self.uninstall(db, "true")

    def test_all_that_waits_counts(self, db: Connection) -> None:
        queue_with_ticks(db, "a")
        next_of(db, "w1")
        with refused("PQ020"):  # for the open batch of a subconsumer
            self.uninstall(db)
        db.make_again()
        db.value("select pgque.send_at('q', 't', 'a'::text, now() + interval '1 hour')")
        with refused("PQ020"):
            self.uninstall(db)
        db.make_again()
        batch = db.open_batch("a", "b")
        with refused("PQ020"):
            self.uninstall(db)
        db.value("select pgque.nack_batch(%s, '{1}', '1 hour')", batch)
        db.value("select pgque.dead_letter_batch(%s, '{2}', '{bad}')", batch)
        db.finish(batch)
        with refused("PQ020"):
            self.uninstall(db)
        db.execute("delete from pgque.retry_queue")
        with refused("PQ020", '"q"', "purge"):
            self.uninstall(db)
        db.value("select pgque.dlq_purge('q', '0')")
        assert self.uninstall(db)

    def test_a_producer_in_the_middle_is_waited_for(self, q: Connection) -> None:
        _, answer = race(q, lambda one: one.send("a"), self.uninstall)
        with refused("PQ020"):
            answer.result()
