"""What schedulers ask for: the list of operations, the logs' own period, storage, rights."""

from collections.abc import Callable

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
    refused,
    rotate,
    rows,
    send,
    tick,
    value,
)

Another = Callable[[], Connection]


def operations(db: Connection) -> list[tuple[str, str | None]]:
    found = rows(db, "select func_name, func_arg from pgque.maint_operations()")
    return [(name, argument) for name, argument in found]


def run_operations(db: Connection) -> None:
    """What PgQ's daemon does with the list."""
    for name, argument in operations(db):
        assert name.startswith("pgque.")
        arguments = [] if argument is None else [argument]
        call = f"select {name}({', '.join(['%s'] * len(arguments))})"
        while value(db, call, *arguments) > 0:
            pass


class TestOperations:
    def test_a_new_queue_needs_nothing(self, db: Connection) -> None:
        make_queue(db)
        db.execute("update pgque.log_rotation set rotated_at = now()")
        assert operations(db) == []

    @pytest.mark.parametrize(
        ("scheduler", "minute", "is_due"),
        [("pg_cron", 0, True), ("pg_cron", 1, False), (None, 0, False)],
    )
    def test_the_log_of_pg_cron_is_purged_at_the_full_hour(
        self, db: Connection, scheduler: str | None, minute: int, is_due: bool
    ) -> None:
        # The server's clock cannot be turned, but the function that reads it can be replaced.
        db.execute(
            "create function pgque.date_part(text, timestamptz) returns double precision"
            f" return {minute}".encode()
        )
        db.execute("update pgque.config set scheduler = %s", [scheduler])
        assert (("pgque.maint_cron_log", None) in operations(db)) is is_due

    def test_a_queue_that_is_due_is_rotated_in_two_steps(self, db: Connection) -> None:
        make_queue(db, rotation_period="1 microsecond")
        db.execute("update pgque.log_rotation set rotated_at = now()")
        assert operations(db) == []
        send(db, "a")
        assert operations(db) == [
            ("pgque.maint_rotate_tables_step1", "q"),
            ("pgque.maint_rotate_tables_step2", None),
        ]

    def test_a_step_that_was_left_is_made_up_for(self, db: Connection) -> None:
        make_queue(db, rotation_period="1 microsecond")
        send(db, "a")
        value(db, "select pgque.maint_rotate_tables_step1('q')")
        assert ("pgque.maint_rotate_tables_step2", None) in operations(db)

    def test_retries_that_are_due_are_listed(self, db: Connection) -> None:
        make_queue(db)
        batch = open_batch(db, "a")
        value(db, "select pgque.batch_retry(%s, 0)", batch)
        assert ("pgque.maint_retry_events", None) in operations(db)

    def test_running_the_list_maintains(self, db: Connection) -> None:
        make_queue(db, rotation_period="1 microsecond")
        batch = open_batch(db, "a")
        value(db, "select pgque.batch_retry(%s, 0)", batch)
        value(db, "select pgque.finish_batch(%s)", batch)
        bloat_positions(db)
        run_operations(db)
        empty_halves(db)
        tick(db)
        assert drain(db) == ["a"]
        assert value(db, "select count(*) from pgque.position_log") < 10
        assert value(db, "select queue_cur_table from pgque.queue") == 1

    def test_with_autovacuum_there_is_nothing_to_vacuum(self, db: Connection) -> None:
        assert rows(db, "select pgque.maint_tables_to_vacuum()") == []

    def test_without_it_there_is(self, db: Connection) -> None:
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
    def test_it_has_a_period_of_its_own(self, db: Connection) -> None:
        make_queue(db, rotation_period="1 microsecond")
        bloat_positions(db)
        switched = [value(db, "select pgque.maint_rotate_metadata()") for _ in range(2)]
        bloat_positions(db)
        assert (switched, value(db, "select pgque.maint_rotate_metadata()")) == ([1, 1], 0)

    def test_the_period_can_be_set(self, db: Connection) -> None:
        make_queue(db)
        assert value(db, "select pgque.set_metadata_rotation_period('0')::text") == "00:00:00"
        for _ in range(2):
            bloat_positions(db)
            assert value(db, "select pgque.maint_rotate_metadata()") == 1

    def test_maint_keeps_it(self, db: Connection) -> None:
        make_queue(db)
        db.execute("update pgque.log_rotation set rotated_at = clock_timestamp()")
        bloat_positions(db)
        count = "select count(*) from pgque.position_log"
        before = value(db, count)
        value(db, "select pgque.maint()")
        kept = value(db, count)
        value(db, "select pgque.set_metadata_rotation_period('0')")
        for _ in range(3):
            value(db, "select pgque.maint()")
        assert (kept, value(db, count)) == (before, 1)

    def test_events_are_rotated_without_it(self, db: Connection) -> None:
        make_queue(db, rotation_period="1 microsecond")
        db.execute("update pgque.log_rotation set rotated_at = clock_timestamp()")
        send(db, "a")
        value(db, "select pgque.maint()")
        assert value(db, "select queue_cur_table from pgque.queue") == 1

    def test_both_logs_are_rotated(self, db: Connection) -> None:
        make_queue(db)
        bloat_positions(db)
        bloat_ticks(db)
        drained = value(
            db, "select pgque.register_consumer_at('q', 'c', max(tick_id)) from pgque.tick"
        )
        assert (drained, value(db, "select pgque.maint_rotate_metadata()")) == (0, 2)

    def test_too_little_is_left_for_later(self, db: Connection) -> None:
        make_queue(db)
        value(db, "select pgque.maint_rotate_metadata()")
        assert value(db, "select bool_and(rotated_at is null) from pgque.log_rotation")

    def test_another_who_is_at_it_is_left_alone(self, db: Connection, another: Another) -> None:
        make_queue(db)
        bloat_positions(db)
        second = another()
        with db.transaction():
            done = value(db, "select pgque.maint_rotate_metadata()")
            assert (done, value(second, "select pgque.maint_rotate_metadata()")) == (1, 0)

    @pytest.mark.parametrize("period", ["-1 s", None])
    def test_an_impossible_period_is_refused(self, db: Connection, period: str | None) -> None:
        with refused("PQ005", "2 minutes"):
            value(db, "select pgque.set_metadata_rotation_period(%s)", period)


class TestStorage:
    def test_rights_are_given_again(self, db: Connection) -> None:
        make_queue(db)
        rights = (
            "select c.relname, c.relacl::text, a.attname, a.attacl::text"
            " from pg_class c left join pg_attribute a on a.attrelid = c.oid and a.attnum > 0"
            " where c.relname like 'event\\_1%' and c.relkind in ('r', 'S') order by 1, 3"
        )
        before = rows(db, rights)
        number = queue_id(db)
        db.execute(
            f"revoke all on pgque.event_{number}, pgque.event_{number}_0 from pgque_reader".encode()
        )
        db.execute(f"grant all on pgque.event_{number}_1 to public".encode())
        assert rows(db, rights) != before
        assert value(db, "select pgque.grant_perms('q')") == 1
        assert rows(db, rights) == before

    def test_storage_settings_are_given_again(self, db: Connection) -> None:
        make_queue(db)
        db.execute("alter table pgque.event_1_0 reset (autovacuum_enabled)")
        assert value(db, "select pgque.tune_storage('q')") == 1
        settings = rows(
            db, "select distinct reloptions from pg_class where relname ~ '^event_1_[012]$'"
        )
        assert all("autovacuum_enabled=false" in each for (each,) in settings)

    @pytest.mark.parametrize(("queue", "code"), [("nosuch", "PQ001"), (None, "PQ005")])
    def test_a_queue_is_needed(self, db: Connection, queue: str | None, code: str) -> None:
        with refused(code):
            value(db, "select pgque.grant_perms(%s)", queue)

    def test_upgrading_makes_each_queues_functions_anew(self, db: Connection) -> None:
        make_queue(db)
        make_queue(db, "other")
        db.execute("drop function pgque.event_1_tables(xid8, xid8)")
        assert value(db, "select pgque.upgrade_schema()") == 2
        rotate(db)
        send(db, "a")
        tick(db)
        assert drain(db) == ["a"]
