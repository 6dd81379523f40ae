"""What maintenance drops of the event tables, when, and what stays."""

import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.engine.test_event_tables import make_queues_up_to, received, tables
from tests.support.databases import empty_database
from tests.support.queues import Connection, connect, refused

Another = Callable[[], Connection]

MAINTAIN = "select pgque.maint_event_tables()"


def drop_queue(db: Connection, queue: str) -> None:
    db.value("select pgque.drop_queue(%s, true)", queue)


def make_and_drop(db: Connection, *queues: str) -> None:
    for queue in queues:
        db.make_queue(queue)
        drop_queue(db, queue)


@pytest.fixture
def warnings(db: Connection) -> list[str]:
    found: list[str] = []
    db.add_notice_handler(lambda notice: found.append(notice.message_primary or ""))
    return found


@pytest.fixture
def empty(server: Any) -> Iterator[str]:
    with empty_database(server) as url:
        yield url


class TestKept:
    def test_are_the_events_of_a_restore_that_maintenance_runs_into(
        self, db: Connection, database_url: str, server: Any, empty: str, tmp_path: Path
    ) -> None:
        db.make_queue()
        db.send("x")
        dump = tmp_path / "dump"
        command = [server.binary("pg_dump"), "--format=custom", f"--file={dump}", database_url]
        subprocess.run(command, check=True)
        with connect(empty) as restored:
            for section in ("pre-data", "data", "post-data"):
                command = [server.binary("pg_restore"), f"--section={section}"]
                subprocess.run([*command, f"--dbname={empty}", dump], check=True)
                if section == "pre-data":
                    restored.rows("select * from pgque.maint_operations()")
                    restored.value(MAINTAIN)
            restored.value("select pgque.adopt_restored_database()")
            assert received(restored) == ["x"]

    def test_is_everything_in_an_old_snapshot(self, db: Connection) -> None:
        make_and_drop(db, "q")
        for isolation in ("repeatable read", "serializable"):
            with refused("PQ013", isolation), db.transaction():
                db.execute(f"set transaction isolation level {isolation}".encode())
                db.value(MAINTAIN)

    def test_is_a_table_that_somebodys_view_reads_and_no_other(
        self, db: Connection, warnings: list[str]
    ) -> None:
        for queue in ("seen", "q"):
            db.make_queue(queue)
        db.execute("create view public.seen as select * from pgque.event_1")
        for queue in ("seen", "q"):
            drop_queue(db, queue)
        assert db.value(MAINTAIN) == 1
        assert tables(db, "event_2%") == []
        assert ["event_1" in warning for warning in warnings] == [True]
        db.execute("drop view public.seen")
        assert db.value(MAINTAIN) == 1
        assert tables(db, "event_1%") == []

    def test_is_a_table_that_its_owner_renamed(self, db: Connection, warnings: list[str]) -> None:
        db.make_queue()
        db.send("x")
        db.execute("alter table pgque.event_1 rename to archive")
        make_and_drop(db, "another")
        db.rows("select * from pgque.maint_operations()")
        assert db.value(MAINTAIN) == 1
        assert warnings == []
        assert db.value("select ev_data from pgque.archive") == "x"


class TestDropped:
    def test_is_what_no_other_session_drops(self, db: Connection, another: Another) -> None:
        make_and_drop(db, "a", "b", "c")
        second = another()
        with db.transaction():
            assert db.value(MAINTAIN) == 3
            assert second.value(MAINTAIN) == 0
        assert second.value(MAINTAIN) == 0
        assert tables(db, "event_1%") == []

    def test_are_few_at_a_time_so_that_the_server_has_enough_locks(self, db: Connection) -> None:
        make_and_drop(db, *(f"queue {number}" for number in range(25)))
        before = db.value("select count(*) from pg_locks")
        with db.transaction():
            assert db.value(MAINTAIN) == 10
            assert db.value("select count(*) from pg_locks") < before + 1000
        assert [db.value(MAINTAIN) for _ in range(3)] == [10, 5, 0]

    def test_is_what_another_group_has_although_one_is_busy(
        self, db: Connection, another: Another
    ) -> None:
        db.make_queue("busy")
        make_and_drop(db, *(f"queue {number}" for number in range(20)))
        make_queues_up_to(db, 64)
        make_and_drop(db, "of another group")
        producer = another()
        with producer.transaction():
            producer.send("x", queue="busy")
            assert db.value(MAINTAIN) == 1
            assert tables(db, "event_64%") == []

    def test_is_what_maintenance_locks_last(self, db: Connection) -> None:
        """Producers of the group wait until the transaction ends."""
        make_and_drop(db, "gone")
        assert db.rows("select * from pgque.maint_steps()")[-1][0] == "maint_event_tables"


def test_a_dump_that_waits_for_a_drop_fails_instead_of_lacking_events(
    db: Connection, another: Another, background: ThreadPoolExecutor
) -> None:
    db.make_queue()
    db.send("x")
    dumping = another()
    with db.transaction():
        drop_queue(db, "q")
        # As pg_dump does: its snapshot sees the queue, then it locks each table by name.
        dumping.execute("begin isolation level repeatable read")
        assert dumping.value("select count(*) from pgque.queue") == 1
        lock = "lock table pgque.event_1 in access share mode"
        locked = background.submit(dumping.execute, lock)
        db.wait_until_blocked(dumping)
    with refused("42P01", "event_1"):
        locked.result()


def test_an_uninstall_waits_for_events_of_a_queue_that_was_created_meanwhile(
    db: Connection, another: Another, background: ThreadPoolExecutor
) -> None:
    db.make_queue()
    producer, loader, uninstalling = another(), another(), another()
    with producer.transaction():
        producer.value("select pgque.get_queue_info()")
        removed = background.submit(
            Connection.value, uninstalling, "select pgque.uninstall()::text"
        )
        db.wait_until_blocked(uninstalling)
        db.make_queue("new")
        insert = "insert into pgque.event_2_0 (ev_type, ev_data) values ('t', 'x')"
        with loader.transaction(force_rollback=True):
            loader.execute(insert)  # the session knows the table now, and locks it alone
        with loader.transaction():
            loader.execute(insert)
            producer.execute("rollback")
            time.sleep(1.5)  # enough for an attempt that gets all locks
    with refused("PQ020", '"new"'):
        removed.result()
    assert received(db, "new") == ["x"]
