"""What schedulers ask for: the list of operations, the logs' own period, storage, rights."""

import psycopg
import pytest

from tests.support.queues import (
    Connection,
    bloat_positions,
    bloat_ticks,
    drain,
    empty_halves,
    make_queue,
    open_batch,
    queue_id,
    rotate,
    rows,
    send,
    tick,
    value,
)
from tests.support.races import Another

POSITIONS = "select count(*) from pgque.position_log"
CURRENT_TABLE = "select queue_cur_table from pgque.queue"
STEP_1 = ("pgque.maint_rotate_tables_step1", "q")
STEP_2 = ("pgque.maint_rotate_tables_step2", None)


def operations(db: Connection) -> list[tuple[str, str | None]]:
    return rows(db, "select func_name, func_arg from pgque.maint_operations()")  # type: ignore


def retry_a_batch(db: Connection) -> int:
    batch: int = open_batch(db, "a")
    value(db, "select pgque.batch_retry(%s, 0)", batch)
    return batch


@pytest.mark.parametrize(
    "run", ["select pgque.maint()", "call pgque.maint_loop('0')", "call pgque.ticker_loop('0')"]
)
def test_what_fails_on_a_read_only_server_says_where_to_run_it(db: Connection, run: str) -> None:
    make_queue(db)
    value(db, "select pgque.force_next_tick('q')")
    hints: set[str | None] = set()
    db.add_notice_handler(lambda notice: hints.add(notice.message_hint))
    db.execute("set default_transaction_read_only = on")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction) as failed:
        db.execute(run.encode())
    hints.add(failed.value.diag.message_hint)
    (hint,) = hints
    assert hint is not None and "on the primary" in hint


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

    def test_a_queue_that_is_due_is_rotated_in_two_steps(self, db: Connection) -> None:
        make_queue(db)
        db.execute("update pgque.log_rotation set rotated_at = now()")
        assert operations(db) == []
        value(db, "select pgque.set_queue_config('q', 'rotation_period', '1 microsecond')")
        assert operations(db) == []
        send(db, "a")
        assert operations(db) == [STEP_1, STEP_2]
        value(db, "select pgque.maint_rotate_tables_step1('q')")
        assert STEP_2 in operations(db)

    def test_running_the_list_as_pgqs_daemon_does_maintains(self, db: Connection) -> None:
        make_queue(db, rotation_period="1 microsecond")
        batch = retry_a_batch(db)
        assert ("pgque.maint_retry_events", None) in operations(db)
        value(db, "select pgque.finish_batch(%s)", batch)
        bloat_positions(db)
        for name, argument in operations(db):
            assert name.startswith("pgque.")
            arguments = [] if argument is None else [argument]
            while value(db, f"select {name}({'%s' * len(arguments)})", *arguments) > 0:
                pass
        empty_halves(db)
        tick(db)
        assert drain(db) == ["a"]
        assert value(db, POSITIONS) < 10
        assert value(db, CURRENT_TABLE) == 1

    def test_there_is_something_to_vacuum_without_autovacuum_alone(self, db: Connection) -> None:
        assert rows(db, "select pgque.maint_tables_to_vacuum()") == []
        db.execute("alter system set autovacuum = off")
        try:
            value(db, "select pg_reload_conf()")
            while value(db, "show autovacuum") == "on":
                value(db, "select pg_sleep(0.01)::text")
            for name, argument in operations(db):
                if name == "vacuum":
                    db.execute(f"vacuum {argument}".encode())
            listed = {name for (name,) in rows(db, "select pgque.maint_tables_to_vacuum()")}
        finally:
            db.execute("alter system reset autovacuum")
            value(db, "select pg_reload_conf()")
        assert "pgque.queue" in listed and "pgque.tick" not in listed


class TestMetadataRotation:
    def test_maint_keeps_it_and_rotates_events_without_it(self, db: Connection) -> None:
        make_queue(db, rotation_period="1 microsecond")
        send(db, "a")
        db.execute("update pgque.log_rotation set rotated_at = clock_timestamp()")
        bloat_positions(db)
        before = value(db, POSITIONS)
        value(db, "select pgque.maint()")
        assert (value(db, POSITIONS), value(db, CURRENT_TABLE)) == (before, 1)
        db.execute("update pgque.config set metadata_rotation_period = '0'")
        for _ in range(3):
            value(db, "select pgque.maint()")
        assert value(db, POSITIONS) == 1

    def test_both_logs_are_rotated_by_one_session_at_a_time(
        self, db: Connection, another: Another
    ) -> None:
        make_queue(db)
        bloat_positions(db)
        bloat_ticks(db)
        value(db, "select pgque.register_consumer_at('q', 'c', max(tick_id)) from pgque.tick")
        second = another()
        with db.transaction():
            for log in ("positions", "ticks"):
                compact = f"select pgque.maint_compact_{log}() > 0"
                assert (value(db, compact), value(second, compact)) == (True, False)


class TestStorage:
    def test_rights_are_given_again(self, db: Connection) -> None:
        make_queue(db)
        rights = (
            "select c.relname, c.relacl::text, a.attname, a.attacl::text"
            " from pg_class c left join pg_attribute a on a.attrelid = c.oid and a.attnum > 0"
            " where c.relname like 'event\\_1%' and c.relkind in ('r', 'S') order by 1, 3"
        )
        before = rows(db, rights)
        table = f"pgque.event_{queue_id(db)}"
        db.execute(f"revoke all on {table}, {table}_0 from pgque_reader".encode())
        db.execute(f"grant all on {table}_1 to public".encode())
        assert rows(db, rights) != before
        assert value(db, "select pgque.grant_perms('q')") == 1
        assert rows(db, rights) == before

    def test_storage_settings_are_given_again(self, db: Connection) -> None:
        make_queue(db)
        db.execute("alter table pgque.event_1_0 reset (autovacuum_enabled)")
        assert value(db, "select pgque.tune_storage('q')") == 1
        sql = "select distinct reloptions from pg_class where relname ~ '^event_1_[012]$'"
        assert all("autovacuum_enabled=false" in each for (each,) in rows(db, sql))

    def test_upgrading_makes_each_queues_functions_anew(self, db: Connection) -> None:
        make_queue(db)
        make_queue(db, "other")
        db.execute("drop function pgque.event_1_tables(xid8, xid8)")
        assert value(db, "select pgque.upgrade_schema()") == 2
        rotate(db)
        send(db, "a")
        tick(db)
        assert drain(db) == ["a"]
