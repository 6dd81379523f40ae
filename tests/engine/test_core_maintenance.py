"""What schedulers ask for: the list of operations, the logs' own period, storage, rights."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.support.queues.halves import compact
from tests.support.queues.sql import Connection, refused

POSITIONS = "select count(*) from pgque.position_log"
CURRENT_TABLE = "select queue_cur_table from pgque.queue"
STEP_1 = ("pgque.maint_rotate_tables_step1", "q")
STEP_2 = ("pgque.maint_rotate_tables_step2", None)


def operations(db: Connection) -> list[tuple[str, str | None]]:
    return db.rows("select func_name, func_arg from pgque.maint_operations()")  # type: ignore


def retry_a_batch(db: Connection) -> int:
    batch: int = db.open_batch("a")
    db.value("select pgque.batch_retry(%s, 0)", batch)
    return batch


def test_what_fails_on_a_read_only_server_says_where_to_run_it(q: Connection) -> None:
    q.value("select pgque.force_next_tick('q')")
    hints: set[str | None] = set()
    q.add_notice_handler(lambda notice: hints.add(notice.message_hint))
    q.execute("set default_transaction_read_only = on")
    for run in (
        "select pgque.maint()",
        "call pgque.maint_loop('0')",
        "call pgque.ticker_loop('0')",
    ):
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction) as failed:
            q.execute(run.encode())
        hints.add(failed.value.diag.message_hint)
    (hint,) = hints
    assert hint is not None and "on the primary" in hint


def test_whoever_an_upgrade_locks_out_says_so_and_names_the_session(q: Connection) -> None:
    calls = {
        "select pgque.maint()": "maintenance",
        "select pgque.ticker()": "ticks",
        "select pgque.ticker('q')": "ticks",
        "select pgque.maint_operations()": "maintenance",
        "select pgque.run_maintenance('pgque.maint_retry_events', null)": "this step",
        "select pgque.begin_slot('0')": "the slot",
        "select pgque.next_beat(now(), null, now(), null)": "the slot",
        "select pgque.maint_pause()": "the slot",
    }

    def check(call: str) -> None:
        with refused("55P03", f"hold {calls[call]} up"):
            sessions[call].execute(call.encode())

    sessions = {call: q.another() for call in calls}
    for call, session in sessions.items():
        session.execute(call.encode())  # or it fails where it is compiled
    upgrade = q.another()
    with upgrade.transaction(), ThreadPoolExecutor(len(calls)) as pool:
        upgrade.execute("lock table pgque.config, pgque.queue, pgque.log in access exclusive mode")
        assert list(pool.map(check, calls)) == [None] * len(calls)


class TestOperations:
    @pytest.mark.parametrize(
        ("scheduler", "minute", "is_due"),
        [("pg_cron", 0, True), ("pg_cron", 1, False), (None, 0, False)],
    )
    def test_the_log_of_pg_cron_is_purged_at_the_full_hour(
        self, db: Connection, scheduler: str | None, minute: int, is_due: bool
    ) -> None:
        # The server's clock cannot be turned, but the function that reads it can be replaced.
        date_part = "pgque.date_part(text, timestamptz) returns double precision"
        db.execute(f"create function {date_part} return {minute}".encode())
        db.execute("update pgque.config set scheduler = %s", [scheduler])
        assert (("pgque.maint_cron_log", None) in operations(db)) is is_due

    def test_a_queue_that_is_due_is_rotated_in_two_steps(self, q: Connection) -> None:
        q.execute("update pgque.log_rotation set rotated_at = now()")
        assert operations(q) == []
        q.value("select pgque.set_queue_config('q', 'rotation_period', '1 microsecond')")
        assert operations(q) == []
        q.send("a")
        assert operations(q) == [STEP_1, STEP_2]
        q.value("select pgque.maint_rotate_tables_step1('q')")
        assert STEP_2 in operations(q)

    def test_ticks_are_copied_before_anything_is_locked(self, db: Connection) -> None:
        db.make_queue(rotation_period="1 microsecond")
        db.send("a")
        db.execute("update pgque.log_rotation set rotated_at = now() where log_name <> 'tick'")
        assert operations(db)[:2] == [("pgque.maint_copy_ticks", None), STEP_1]

    def test_a_half_that_was_left_is_emptied_before_the_next_rotation_is_due(
        self, q: Connection
    ) -> None:
        for _ in range(2):
            q.empty_halves()
            compact(q)
        assert operations(q) == [
            ("pgque.maint_compact_counters", None),
            ("pgque.maint_empty_half", "position"),
            ("pgque.maint_empty_half", "tick"),
        ]

    def test_running_the_list_as_pgqs_daemon_does_maintains(self, db: Connection) -> None:
        db.make_queue(rotation_period="1 microsecond")
        batch = retry_a_batch(db)
        assert ("pgque.maint_retry_events", None) in operations(db)
        db.value("select pgque.finish_batch(%s)", batch)
        db.bloat_positions()
        for name, argument in operations(db):
            assert name.startswith("pgque.")
            arguments = [] if argument is None else [argument]
            while db.value(f"select {name}({'%s' * len(arguments)})", *arguments) > 0:
                pass
        db.empty_halves()
        assert db.received() == ["a"]
        assert db.value(POSITIONS) < 10
        assert db.value(CURRENT_TABLE) == 1

    def test_there_is_something_to_vacuum_without_autovacuum_alone(self, db: Connection) -> None:
        assert db.rows("select pgque.maint_tables_to_vacuum()") == []
        db.execute("alter system set autovacuum = off")
        try:
            db.value("select pg_reload_conf()")
            while db.value("show autovacuum") == "on":
                db.value("select pg_sleep(0.01)::text")
            for name, argument in operations(db):
                if name == "vacuum":
                    db.execute(f"vacuum {argument}".encode())
            listed = {name for (name,) in db.rows("select pgque.maint_tables_to_vacuum()")}
        finally:
            db.execute("alter system reset autovacuum")
            db.value("select pg_reload_conf()")
        assert "pgque.queue" in listed and "pgque.tick" not in listed


class TestMetadataRotation:
    def test_maint_keeps_it_and_rotates_events_without_it(self, db: Connection) -> None:
        db.make_queue(rotation_period="1 microsecond")
        db.send("a")
        db.execute("update pgque.log_rotation set rotated_at = clock_timestamp()")
        db.bloat_positions()
        before = db.value(POSITIONS)
        db.value("select pgque.maint()")
        assert (db.value(POSITIONS), db.value(CURRENT_TABLE)) == (before, 1)
        db.execute("update pgque.config set metadata_rotation_period = '0'")
        for _ in range(3):
            db.value("select pgque.maint()")
        assert db.value(POSITIONS) == 1

    def test_both_logs_are_rotated_by_one_session_at_a_time(self, q: Connection) -> None:
        q.bloat_positions()
        q.bloat_ticks()
        q.value("select pgque.register_consumer_at('q', 'c', max(tick_id)) from pgque.tick")
        second = q.another()
        with q.transaction():
            for log in ("positions", "ticks"):
                compact = f"select pgque.maint_compact_{log}() > 0"
                assert (q.value(compact), second.value(compact)) == (True, False)


class TestStorage:
    def test_rights_are_given_again(self, q: Connection) -> None:
        rights = (
            "select c.relname, c.relacl::text, a.attname, a.attacl::text"
            " from pg_class c left join pg_attribute a on a.attrelid = c.oid and a.attnum > 0"
            " where c.relname like 'event\\_1%' and c.relkind in ('r', 'S') order by 1, 3"
        )
        before = q.rows(rights)
        table = f"pgque.event_{q.queue_id()}"
        q.execute(f"revoke all on {table}, {table}_0 from pgque_reader".encode())
        q.execute(f"grant all on {table}_1 to public".encode())
        assert q.rows(rights) != before
        assert q.value("select pgque.grant_perms('q')") == 1
        assert q.rows(rights) == before

    def test_storage_settings_are_given_again(self, q: Connection) -> None:
        q.execute("alter table pgque.event_1_0 reset (autovacuum_enabled)")
        assert q.value("select pgque.tune_storage('q')") == 1
        sql = "select distinct reloptions from pg_class where relname ~ '^event_1_[012]$'"
        assert all("autovacuum_enabled=false" in each for (each,) in q.rows(sql))
