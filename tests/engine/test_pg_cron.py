"""pg_cron keeps queues going: started, stopped, watched, on Debian's pg_cron, which knows minutes.

Its clock cannot be turned, so one fixture lets it work for two of its minutes; the tests look at
what happened.
"""

import time
from collections.abc import Iterator
from itertools import pairwise

import psycopg
import pytest

from tests.conftest import INSTALL_SQL
from tests.support.queues.sql import Connection, connect, refused
from tests.support.servers.postgres import Postgres, pg_cron_server

# Debian packages pg_cron for its own server.
pytestmark = pytest.mark.server(15)

HOME = "postgres"
JOBS = "select jobname, schedule, database, username from cron.job order by jobname"
CONFIG = "select ticker_job_id, maint_job_id, scheduler from pgque.config"
RUNS = """
select r.start_time, r.end_time, r.status
from cron.job_run_details r join cron.job j using (jobid)
where j.jobname = %s and r.start_time is not null order by r.runid
"""
LONGEST_WAIT = 200


@pytest.fixture(scope="module")
def cron_server() -> Iterator[Postgres]:
    with pg_cron_server() as server:
        with connect(server.url) as db:
            db.execute("create extension pg_cron")
        yield server


@pytest.fixture
def home(cron_server: Postgres) -> Iterator[Connection]:
    """pg_cron's own database, with the queue just installed."""
    with connect(cron_server.url) as db:
        db.execute(INSTALL_SQL.read_bytes())
        yield db
        db.execute("reset role")
        if db.value("select to_regnamespace('pgque') is not null"):
            db.value("select pgque.uninstall(true)::text")
        db.execute("select cron.unschedule(jobid) from cron.job")
        db.execute("delete from cron.job_run_details")


@pytest.fixture
def owned(home: Connection, cron_server: Postgres) -> Iterator[Connection]:
    """pg_cron's database, with the queue of a login that is no superuser."""
    home.value("select pgque.uninstall()::text")
    home.execute("create role keeper login; grant create on database postgres to keeper")
    with connect(cron_server.url.replace("//postgres@", "//keeper@")) as db:
        db.execute(INSTALL_SQL.read_bytes())
        yield db
        db.value("select pgque.uninstall(true)::text")
    home.execute("drop owned by keeper; drop role keeper")


@pytest.fixture
def elsewhere(cron_server: Postgres, home: Connection) -> Iterator[Connection]:
    """Another database with the queue, whose name needs quotes."""
    home.execute("create database \"a 'shop'\"")
    with connect(cron_server.database_url("a 'shop'")) as db:
        db.execute(INSTALL_SQL.read_bytes())
        yield db
    home.execute("drop database \"a 'shop'\" with (force)")


def start(db: Connection) -> None:
    db.value("select pgque.start()::text")


def stop(db: Connection) -> None:
    db.value("select pgque.stop()::text")


def status(db: Connection) -> dict[str, tuple[str, str]]:
    found = db.rows("select component, status, detail from pgque.status()")
    return {component: (state, detail) for component, state, detail in found}


def hint_of(db: Connection, call: str) -> str:
    with pytest.raises(psycopg.Error) as caught:
        db.execute(call.encode())
    assert caught.value.sqlstate == "PQ019"
    return caught.value.diag.message_hint or ""


def run_there(home: Connection, hint: str) -> None:
    home.execute(hint.removeprefix("Run there: ").encode())


def wait_for_runs(db: Connection, job: str, count: int) -> None:
    """Until so many runs of a job have begun, the last of them three seconds ago."""
    deadline = time.monotonic() + LONGEST_WAIT
    sql = (
        "select count(*) from cron.job_run_details r join cron.job j using (jobid)"
        " where j.jobname = %s and r.start_time < clock_timestamp() - interval '3 seconds'"
    )
    while db.value(sql, job) < count:
        assert time.monotonic() < deadline, db.rows("select * from cron.job_run_details")
        time.sleep(0.5)


class TestStarting:
    def test_start_makes_one_job_for_ticks_and_one_for_maintenance(self, home: Connection) -> None:
        stop(home)  # does nothing yet
        start(home)
        assert home.rows(JOBS) == [
            ("pgque_maint", "* * * * *", HOME, "postgres"),
            ("pgque_ticker", "* * * * *", HOME, "postgres"),
        ]
        job_id = "select jobid from cron.job where jobname = %s"
        ids = [home.value(job_id, job) for job in ("pgque_ticker", "pgque_maint")]
        assert home.rows(CONFIG) == [(*ids, "pg_cron")]
        before = home.rows("select * from cron.job"), home.rows("select * from pgque.config")
        start(home)
        after = home.rows("select * from cron.job"), home.rows("select * from pgque.config")
        assert after == before
        home.execute(INSTALL_SQL.read_bytes())
        assert home.rows("select * from cron.job") == before[0]
        assert status(home)["scheduler"] == ("ok", "pg_cron 1.4-1")

    def test_starting_repairs_a_job_that_somebody_removed(self, home: Connection) -> None:
        start(home)
        home.execute("select cron.unschedule('pgque_maint')")
        assert status(home)["maint"][0] == "missing"
        start(home)
        assert status(home)["maint"][0] == "ok"

    def test_stopping_and_uninstalling_leave_what_is_of_others(self, home: Connection) -> None:
        home.execute("select cron.schedule('mine', '* * * * *', 'select 1')")
        start(home)
        stop(home)
        assert [name for name, *_ in home.rows(JOBS)] == ["mine"]
        assert home.rows(CONFIG) == [(None, None, None)]
        start(home)
        for command in ("select 1", "call pgque.ticker_loop('61.5 seconds')"):
            note_run(home, command, age="0")
        home.value("select pgque.uninstall()::text")
        assert [name for name, *_ in home.rows(JOBS)] == ["mine"]
        assert home.rows("select command from cron.job_run_details") == [("select 1",)]

    def test_an_admin_starts_it_for_the_owner(self, home: Connection) -> None:
        home.execute("set role pgque_admin")
        start(home)
        assert status(home)["ticker"][0] == "ok"
        home.execute("reset role")
        assert {user for *_, user in home.rows(JOBS)} == {"postgres"}


class TestOwners:
    """Who owns the schema without being a superuser may not even see cron.database_name."""

    def test_an_owner_is_told_what_it_lacks(self, owned: Connection, home: Connection) -> None:
        hint = hint_of(owned, "select pgque.start()")
        assert hint.endswith("grant usage on schema cron to keeper;")
        home.execute("grant usage on schema cron to keeper")
        start(owned)
        start(owned)
        assert {user for *_, user in home.rows(JOBS)} == {"keeper"}
        assert status(owned)["ticker"][0] == "ok"
        stop(owned)
        assert home.rows(JOBS) == []

    def test_elsewhere_it_is_told_so(self, home: Connection, cron_server: Postgres) -> None:
        home.execute("create role keeper login")
        home.execute("create database shop owner keeper")
        try:
            url = cron_server.database_url("shop").replace("//postgres@", "//keeper@")
            with connect(url) as db:
                db.execute(INSTALL_SQL.read_bytes())
                with refused("PQ019", 'pg_cron is not in database "shop"', "create extension"):
                    start(db)
                assert "cron.schedule_in_database" in hint_of(db, "select pgque.start()")
        finally:
            home.execute("drop database shop with (force)")
            home.execute("drop role keeper")


class TestElsewhere:
    def test_it_says_what_makes_the_jobs_there_and_removes_them(
        self, elsewhere: Connection, home: Connection
    ) -> None:
        state, detail = status(elsewhere)["scheduler"]
        assert state == "none" and 'database "postgres"' in detail
        with refused("PQ019", 'database "postgres"', "schedule_in_database"):
            start(elsewhere)
        start(home)
        run_there(home, hint_of(elsewhere, "select pgque.start()"))
        assert [(name, database) for name, _, database, _ in home.rows(JOBS)] == [
            ("pgque_maint", HOME),
            ("pgque_maint of a 'shop'", "a 'shop'"),
            ("pgque_ticker", HOME),
            ("pgque_ticker of a 'shop'", "a 'shop'"),
        ]
        run_there(home, hint_of(elsewhere, "select pgque.stop()"))
        assert [name for name, *_ in home.rows(JOBS)] == ["pgque_maint", "pgque_ticker"]

    def test_without_the_extension_start_says_what_to_create(self) -> None:
        with pg_cron_server() as server, connect(server.url) as db:
            db.execute(INSTALL_SQL.read_bytes())
            assert hint_of(db, "select pgque.start()").endswith("create extension pg_cron;")
            stop(db)


def test_the_statements_on_pg_crons_tables_are_sound(home: Connection) -> None:
    home.execute("create extension if not exists plpgsql_check")
    found = home.rows(
        "select p.proname, f.lineno, f.message from pg_proc p cross join lateral"
        " plpgsql_check_function_tb(p.oid, performance_warnings => false) f"
        " where p.pronamespace = 'pgque'::regnamespace and p.prosrc ~ 'cron\\.'"
        " and f.detail is distinct from 'cannot to determine result of dynamic SQL'"
    )
    assert found == []


def test_old_runs_of_our_jobs_go_from_the_log_and_no_others(home: Connection) -> None:
    loop = "call pgque.ticker_loop('61.5 seconds')"
    note_run(home, loop, age="2 days")
    note_run(home, loop, age="1 hour")
    note_run(home, loop, age="2 days", database="other")
    note_run(home, "call pgque.mine()", age="2 days")
    assert home.value("select pgque.purge_cron_log('1 day')") == 1
    left = home.rows("select command, database from cron.job_run_details order by runid")
    assert left == [(loop, HOME), (loop, "other"), ("call pgque.mine()", HOME)]


def note_run(db: Connection, command: str, age: str, database: str = HOME) -> None:
    """A run in pg_cron's log that ended so long ago."""
    db.execute(
        "insert into cron.job_run_details (jobid, runid, database, username, command, status,"
        " start_time, end_time) select 0, nextval('cron.runid_seq'), %s, 'postgres', %s,"
        " 'succeeded', now() - %s::interval, now() - %s::interval",
        [database, command, age, age],
    )


def test_two_slots_of_a_minute(home: Connection, owned: Connection, elsewhere: Connection) -> None:
    """One story, since it has to wait for the clock: up to two minutes and some seconds.

    As on a managed server, the queue is a tenant's, and nobody ticks by hand once it is started.
    """
    home.execute("grant usage on schema cron to keeper")
    # Given a queue that ticks whenever it is asked, with a retry to deliver and tables to rotate,
    owned.make_queue(ticker_idle_period="0")
    (event,) = owned.send("again")
    owned.value("select pgque.ticker()")
    batch = owned.next_batch()
    owned.value("select pgque.nack_batch(%s, %s, '0')", batch, [event])
    owned.value("select pgque.finish_batch(%s)", batch)
    owned.value("select pgque.set_queue_config('q', 'rotation_period', '1 microsecond')")
    # an event for later,
    owned.value("select pgque.send_at('q', 'later', 'soon', now() + interval '1 second')")
    # and one in another database,
    elsewhere.make_queue(ticker_idle_period="0")
    elsewhere.send("there")
    run_there(home, hint_of(elsewhere, "select pgque.start()"))

    # when pg_cron has begun a second slot,
    start(owned)
    wait_for_runs(owned, "pgque_ticker", 2)

    # then each run of the ticker began when the last one had ended, and not long after,
    runs = owned.rows(RUNS, "pgque_ticker")
    assert [state for *_, state in runs] == ["succeeded", "running"], runs
    for (_, ended, _), (began, *_) in pairwise(runs):
        assert 0 <= (began - ended).total_seconds() < 1
    # with ticks all the time,
    ticks = owned.rows("select tick_time from pgque.tick where tick_time > %s", runs[0][0])
    gaps = [(b - a).total_seconds() for (a,), (b,) in pairwise(sorted(ticks))]
    assert max(gaps) < 1
    assert len(gaps) > 300
    # the retry and the event for later are there, the tables were rotated,
    # the other queue was ticked,
    assert sorted(owned.drain()) == ["again", "soon"]
    assert owned.value(
        "select queue_switch_step2 is not null and queue_cur_table > 0"
        " or queue_switch_time > %s from pgque.queue",
        runs[0][0],
    )
    assert elsewhere.drain() == ["there"]
    assert {state for state, _ in status(owned).values()} == {"ok"}

    # and when it is stopped, ticks stop.
    stop(owned)
    time.sleep(1)
    last = owned.value("select max(tick_id) from pgque.tick")
    time.sleep(2)
    assert owned.value("select max(tick_id) from pgque.tick") == last
