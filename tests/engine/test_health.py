"""Health of queues, consumers and the database: what is wrong, and what to do about it."""

from tests.support.queues.metrics import age_events, age_positions, age_ticks, health
from tests.support.queues.sql import Connection
from tests.support.queues.workers import next_of, queue_with_ticks
from tests.support.servers.standbys import wait_for


def set_config(db: Connection, parameter: str, setting: str) -> None:
    db.value("select pgque.set_queue_config('q', %s, %s)", parameter, setting)


def age_rotation(db: Connection, age: str) -> None:
    db.execute("update pgque.queue set queue_switch_time = now() - %s::interval", [age])


def age_retries(db: Connection, age: str) -> None:
    db.execute("update pgque.retry_queue set ev_retry_after = now() - %s::interval", [age])


def test_an_empty_database_and_new_queues_are_well(db: Connection) -> None:
    found = db.rows("select queue_name, check_name, status from pgque.queue_health()")
    assert found == [
        (None, "log_rotation", "ok"),
        (None, "restored_database", "ok"),
    ]
    db.make_queue()
    assert {name: status for name, (status, _) in health(db).items()} == {
        "consumer_lag:c": "ok",
        "dlq_health": "ok",
        "failing_batch:c": "ok",
        "held_batch:c": "ok",
        "lease_health": "ok",
        "retry_backlog": "ok",
        "rotation_health": "ok",
        "ticker_running": "ok",
    }
    db.make_queue("late", consumers=())
    assert {status for status, _ in health(db, "late").values()} == {"ok"}
    age_ticks(db, "1 hour", "late")
    assert health(db)["ticker_running"][0] == "ok"
    assert health(db, "late")["ticker_running"][0] == "critical"


class TestTicker:
    def test_ticks_are_expected_within_the_idle_period(self, q: Connection) -> None:
        # Each on top of the one before.
        for age, status in (
            ("1 minute", "ok"),
            ("2 minutes", "warning"),
            ("4 minutes", "critical"),
        ):
            age_ticks(q, age)
            assert health(q)["ticker_running"][0] == status
        set_config(q, "ticker_idle_period", "1 hour")
        age_ticks(q, "112 minutes")
        assert health(q)["ticker_running"][0] == "ok"

    def test_a_paused_queue_is_no_alarm_but_says_how_to_resume(self, db: Connection) -> None:
        db.make_queue(ticker_paused="true")
        age_ticks(db, "1 day")
        status, detail = health(db)["ticker_running"]
        assert (status, "paused" in detail) == ("warning", True)
        assert health(db)["consumer_lag:c"][0] == "ok"
        db.execute(detail.partition("with ")[2].encode())
        assert db.value("select queue_ticker_paused from pgque.queue") is False

    def test_a_queue_without_its_external_ticker_or_any_tick_is_critical(
        self, db: Connection
    ) -> None:
        db.make_queue(external_ticker="true")
        age_ticks(db, "1 hour")
        status, detail = health(db)["ticker_running"]
        assert (status, "external ticker" in detail) == ("critical", True)
        set_config(db, "external_ticker", "false")
        db.execute("delete from pgque.tick_log")
        assert health(db)["ticker_running"][0] == "critical"


class TestRotation:
    def test_is_expected_within_its_period(self, q: Connection) -> None:
        age_rotation(q, "9 hours")
        assert health(q)["rotation_health"][0] == "ok"
        q.open_batch("a")
        for age, status in (("3 hours", "ok"), ("5 hours", "warning"), ("9 hours", "critical")):
            age_rotation(q, age)
            found, detail = health(q)["rotation_health"]
            assert (found, "pgque.maint()" in detail) == (status, status != "ok")

    def test_names_the_consumer_that_holds_it_up(self, db: Connection) -> None:
        db.make_queue(consumers=("fast", "slow"))
        db.publish("a")
        db.drain(consumer="fast")
        age_ticks(db, "5 hours")
        age_rotation(db, "5 hours")
        db.tick()
        status, detail = health(db)["rotation_health"]
        assert status == "warning" and '"slow"' in detail and '"fast"' not in detail

    def test_names_the_loader_the_transaction_or_the_pause_that_it_waits_for(
        self, db: Connection
    ) -> None:
        db.make_queue(rotation_period="1 hour")
        table = db.value("select queue_data_pfx from pgque.queue")
        db.send("a")
        age_rotation(db, "3 hours")
        holder = db.another()
        with holder.transaction():
            holder.rows(f"select from {table}_1")
            assert f"session {holder.info.backend_pid}" in health(db)["rotation_health"][1]
        old = db.another()
        with old.transaction():
            old.execute("set transaction isolation level repeatable read")
            old.value("select pg_current_snapshot()::text")
            db.value("select pgque.maint_rotate_tables_step1('q')")
            assert f"session {old.info.backend_pid}" in health(db)["rotation_health"][1]
        for number in (1, 2):
            db.execute(f"insert into {table}_{number} (ev_type) values ('t')".encode())
        assert "current_event_table" in health(db)["rotation_health"][1]
        db.value("select pgque.pause_queue('q')::text")
        assert "resume_queue" in health(db)["rotation_health"][1]

    def test_a_table_that_a_loader_keeps_filling_is_named(self, q: Connection) -> None:
        table = q.value("select format('%s_1', queue_data_pfx) from pgque.queue")
        q.execute(
            f"insert into {table} (ev_type, ev_data, ev_time)"
            " select 't', repeat('x', 100), now() - interval '1 day'"
            " from generate_series(1, 2000)".encode()
        )
        q.rotate()
        q.execute(f"insert into {table} (ev_type) values ('t')".encode())
        set_config(q, "rotation_period", "1 hour")
        status, detail = health(q)[f"left_table:{table}"]
        assert (status, "pgque.current_event_table('q')" in detail) == ("warning", True)

    def test_a_table_that_a_consumer_has_needed_for_long_is_no_loaders(self, q: Connection) -> None:
        q.value("select pgque.send_batch('q', array_fill(repeat('x', 100), '{2000}'))")
        q.execute("update pgque.event set ev_time = now() - interval '1 day'")
        q.rotate()
        set_config(q, "rotation_period", "1 hour")
        q.drain()
        assert not [check for check in health(q) if check.startswith("left_table")]


def test_a_captured_table_with_a_disabled_trigger_is_critical(q: Connection) -> None:
    q.execute("create table t (id int primary key); select pgque.capture('t', 'q')")
    assert not [check for check in health(q) if check.startswith("captured")]
    q.execute("alter table t disable trigger all")
    status, detail = health(q)["captured_table:public.t"]
    assert (status, "is disabled" in detail) == ("critical", True)
    q.execute("select pgque.capture('t', 'q')")
    assert not [check for check in health(q) if check.startswith("captured")]


class TestDeadLettersAndRetries:
    def test_thousands_of_dead_letters_are_a_warning(self, q: Connection) -> None:
        q.value("select pgque.send_batch('q', array_fill('x'::text, '{3000}'))")
        batch = q.open_batch("last")
        ids = "array(select generate_series(%s::bigint, %s))"
        q.value(f"select pgque.dead_letter_batch(%s, {ids}, 'bad')", batch, 1, 1000)
        before = health(q)["dlq_health"][0]
        q.value(f"select pgque.dead_letter_batch(%s, {ids}, 'bad')", batch, 1001, 3001)
        status, detail = health(q)["dlq_health"]
        assert (before, status) == ("ok", "warning")
        assert detail.startswith("3001 dead letters")

    def test_retries_that_are_due_and_stay_are_an_alarm(self, q: Connection) -> None:
        batch = q.open_batch("a")
        q.value("select pgque.nack_batch(%s, '{1}', '1 hour')", batch)
        age_retries(q, "2 hours")
        assert health(q)["retry_backlog"] == ("ok", "no retry is due"), "its batch is open"
        q.finish(batch)
        found = {"1 minute": "ok", "10 minutes": "warning", "2 hours": "critical"}
        for age, status in found.items():
            age_retries(q, age)
            state, detail = health(q)["retry_backlog"]
            assert state == status and detail.startswith("1 retries are due")
        set_config(q, "disable_insert", "true")
        assert "disable_insert" in health(q)["retry_backlog"][1]


class TestConsumers:
    def test_lag_is_measured_against_the_rotation_period(self, q: Connection) -> None:
        age_ticks(q, "3 hours")
        q.publish("a")
        # However old the last tick of a quiet queue is.
        assert health(q)["consumer_lag:c"][0] == "ok"
        # Each on top of the one before.
        for age, status in (
            ("50 minutes", "ok"),
            ("40 minutes", "warning"),
            ("90 minutes", "critical"),
        ):
            age_events(q, age)
            age_ticks(q, age)
            found, detail = health(q)["consumer_lag:c"]
            assert found == status and "1 events" in detail

    def test_a_subconsumer_that_keeps_its_batch_is_named(self, db: Connection) -> None:
        queue_with_ticks(db, "a")
        assert health(db)["consumer_lag:c.w1"] == ("ok", "has no batch")
        next_of(db, "w1")
        age_events(db, "3 hours")
        age_ticks(db, "3 hours")
        found = health(db)
        assert found["consumer_lag:c.w1"][0] == "critical"
        assert found["consumer_lag:c"][0] == "ok"

    def test_a_batch_whose_lease_ran_out_wants_a_worker(self, q: Connection) -> None:
        q.publish("a")
        q.value("select batch_id from pgque.claim_batch('q', 'c', 'the worker', '1 minute')")
        # Each on top of the one before; the lease was for a minute.
        for age, status in (("1 s", "ok"), ("3 minutes", "warning"), ("10 minutes", "critical")):
            age_positions(q, age)
            found, detail = health(q)["lease_health"]
            assert (found, '"the worker"' in detail) == (status, status != "ok")
        q.value("select pgque.ack_batch(1, 'the worker', 1)")
        age_positions(q, "1 hour")
        assert health(q)["lease_health"][0] == "ok"

    def test_the_lease_of_a_held_batch_wants_no_worker(self, q: Connection) -> None:
        q.publish("a")
        q.value("select batch_id from pgque.claim_batch('q', 'c', 'the worker', '1 minute')")
        age_positions(q, "1 hour")
        q.value("select pgque.hold_batch(1, 1, 'its attempts are used up')::text")
        found = health(q)
        assert (found["held_batch:c"][0], found["lease_health"][0]) == ("critical", "ok")

    def test_a_slot_without_a_batch_that_nobody_works_on_is_no_concern(
        self, bare: Connection
    ) -> None:
        bare.value("select pgque.subscribe_slot('q', 'c', 0, 1)::text")
        bare.value("select pgque.claim_slot('q', 'c', 0, 'the worker')")
        age_positions(bare, "1 hour")
        assert health(bare)["lease_health"][0] == "ok"


def test_the_detail_of_what_is_wrong_always_says_what_to_do(q: Connection) -> None:
    batch = q.open_batch("a")
    q.value("select pgque.nack_batch(%s, '{1}', '0')", batch)
    q.finish(batch)
    age_retries(q, "1 day")
    q.publish("b")
    age_events(q, "1 day")
    age_ticks(q, "1 day")
    age_rotation(q, "1 day")
    sql = "select check_name, detail from pgque.queue_health() where status <> 'ok' order by 1"
    wrong = q.rows(sql)
    assert [name for name, _ in wrong] == [
        "consumer_lag:c",
        "retry_backlog",
        "rotation_health",
        "ticker_running",
    ]
    assert all("pgque." in detail for _, detail in wrong), wrong


def test_a_restored_database_is_critical_until_it_is_adopted(q: Connection) -> None:
    q.execute("refresh materialized view pgque.origin with no data")  # as pg_restore
    q.execute("refresh materialized view pgque.origin")
    before = health(q, None)["restored_database"][0]
    q.value("select pgque.adopt_restored_database()")
    assert (before, health(q, None)["restored_database"][0]) == ("critical", "ok")


class TestLogs:
    def test_that_grow_are_named_with_whoever_keeps_them_locked(self, bare: Connection) -> None:
        bare.bloat_ticks(200_000)
        bare.execute(
            "update pgque.config set installed_at = now()"
        )  # it may be an older template's
        before = health(bare, None)["log_rotation"][0]
        bare.execute("update pgque.log_rotation set rotated_at = now() - interval '1 hour'")
        status, detail = health(bare, None)["log_rotation"]
        assert (before, status, "pgque.maint()" in detail) == ("ok", "warning", True)
        # Whoever has begun just now is not worth a name; the function is told to wait less.
        text = bare.value("select pg_get_functiondef('pgque.log_health()'::regprocedure)")
        quick = text.replace("interval '10 seconds'", "interval '10 milliseconds'")
        assert quick != text
        bare.execute(quick.encode())
        holder = bare.another()
        with holder.transaction():
            holder.rows("select from pgque.tick limit 1")
            named = "select detail like %s from pgque.queue_health() where check_name = %s"
            wait_for(bare, named, f"%session {holder.info.backend_pid}%", "log_rotation")
