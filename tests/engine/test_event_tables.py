"""How events reach the event tables of their queue, and what maintenance drops of these."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.queues.races import race
from tests.support.queues.sql import Connection, connect, refused, warnings_of
from tests.support.servers.dumps import dump, restore

CALLS = [
    "select pgque.send(%s, 't', %s::text)",
    "select pgque.send(%s, 't', to_jsonb(%s::text))",
    "select pgque.send(%s, 't', %s::text, 'key')",
    "select pgque.insert_event(%s, 't', %s)",
    "select pgque.insert_event(%s, 't', %s, null, null, null, null)",
    "select pgque.insert_event_raw(%s, null, null, null, null, 't', %s, null, null, null, null)",
    "select pgque.send_batch(%s, 't', array[%s])",
    "select pgque.send_idem(%s, 't', %s::text, 'key')",
]


def received(db: Connection, queue: str = "q") -> list[str]:
    db.tick(queue)
    return [payload.strip('"') for payload in db.drain(queue)]


def make_queues_up_to(db: Connection, number: int) -> None:
    """The next queue gets this number."""
    db.value("select setval('pgque.queue_queue_id_seq', %s, false)", number)


def tables(db: Connection, like: str) -> list[str]:
    sql = "select relname::text from pg_class where relkind in ('r', 'p') and relname like %s"
    return sorted(name for (name,) in db.rows(sql, like))


def test_queues_in_several_groups_get_their_own_events_by_every_call(db: Connection) -> None:
    make_queues_up_to(db, 62)
    queues = [f"queue {number}" for number in range(4)]
    for queue in queues:
        db.make_queue(queue)
    assert tables(db, "event_group_%") == ["event_group_0", "event_group_1"]
    sent = {queue: [f"{n} to {queue}" for n in range(len(CALLS))] for queue in queues}
    for number, call in enumerate(CALLS):
        for queue in queues:
            db.value(call, queue, sent[queue][number])
    assert {queue: received(db, queue) for queue in queues} == sent


def test_a_queue_can_be_closed_and_opened_for_every_call(q: Connection) -> None:
    q.value("select pgque.set_queue_config('q', 'disable_insert', 'true')")
    for call in CALLS:
        with refused("PQ006", '"q"'):
            q.value(call, "q", "a")
    q.execute("set session_replication_role = replica")
    for number, call in enumerate(CALLS):
        q.value(call, "q", str(number))
    q.execute("reset session_replication_role")
    q.value("select pgque.set_queue_config('q', 'disable_insert', 'false')")
    assert received(q) == [str(number) for number in range(len(CALLS))]


class TestCreation:
    def test_waits_for_no_producer_of_the_group(self, q: Connection) -> None:
        producer = q.another()
        with producer.transaction():
            producer.execute("set transaction isolation level repeatable read")
            producer.send("before")
            q.make_queue("another")
            producer.send("after")
        producer.send("there", queue="another")
        assert (received(q), received(q, "another")) == (["before", "after"], ["there"])

    @pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
    def test_waits_for_another_one(self, db: Connection, isolation: str) -> None:
        def make_second(session: Connection) -> None:
            session.execute(f"set default_transaction_isolation = '{isolation}'".encode())
            session.make_queue("second")

        _, made = race(db, lambda first: first.make_queue("first"), make_second)
        made.result()
        for queue in ("first", "second"):
            db.send(f"to {queue}", queue=queue)
            assert received(db, queue) == [f"to {queue}"]


class TestDropping:
    def test_a_dropped_queue_is_unknown_and_made_again_gets_its_own_events(
        self, bare: Connection
    ) -> None:
        bare.send("of the old queue")
        bare.value("select pgque.drop_queue('q')")
        for call in CALLS:
            with refused("PQ001", '"q"'):
                bare.value(call, "q", "x")
        bare.make_queue()
        bare.send("before")
        bare.send("after")
        assert received(bare) == ["before", "after"]

    def test_a_producer_that_waited_for_it_is_refused(
        self, db: Connection, background: ThreadPoolExecutor
    ) -> None:
        producer = db.another()
        for call in CALLS:
            db.make_queue(consumers=())
            producer.value(call, "q", "before")  # plans it
            db.execute("delete from pgque.idem")
            with db.transaction():
                db.value("select pgque.drop_queue('q')")
                sending = background.submit(Connection.value, producer, call, "q", "too late")
                db.wait_until_blocked(producer)
            with pytest.raises(psycopg.Error) as raised:
                sending.result()
            assert raised.value.sqlstate in ("23514", "PQ001"), raised.value
            assert raised.value.sqlstate == "PQ001" or "queue_was_dropped" in str(raised.value)

    def test_waits_for_no_producer_of_another_queue(self, db: Connection) -> None:
        db.make_queue("busy")
        db.make_queue(consumers=())
        db.send("x")
        producer = db.another()
        with producer.transaction():
            producer.send("1", queue="busy")
            db.value("select pgque.drop_queue('q')")
            db.value("select pgque.maint()")
            assert len(tables(db, "event_2%")) == 4
            producer.send("2", queue="busy")
        db.value("select pgque.maint()")
        assert tables(db, "event_2%") == []
        producer.send("3", queue="busy")
        assert received(db, "busy") == ["1", "2", "3"]

    def test_a_queue_that_is_being_created_keeps_its_tables(self, db: Connection) -> None:
        creator = db.another()
        with creator.transaction():
            creator.make_queue()
            db.value("select pgque.maint()")
        db.send("x")
        assert received(db) == ["x"]


MAINTAIN = "select pgque.maint_event_tables()"


def drop_queue(db: Connection, queue: str) -> None:
    db.value("select pgque.drop_queue(%s, true)", queue)


def make_and_drop(db: Connection, *queues: str) -> None:
    for queue in queues:
        db.make_queue(queue)
        drop_queue(db, queue)


class TestKept:
    def test_are_the_events_of_a_restore_that_maintenance_runs_into(
        self, q: Connection, database_url: str, server: Any, empty_url: str, tmp_path: Path
    ) -> None:
        q.send("x")
        file = tmp_path / "dump"
        dump(server, database_url, file)
        with connect(empty_url) as restored:
            for section in ("pre-data", "data", "post-data"):
                restore(server, file, empty_url, f"--section={section}")
                if section == "pre-data":
                    restored.rows("select * from pgque.maint_operations()")
                    restored.value(MAINTAIN)
            restored.value("select pgque.adopt_restored_database()")
            assert received(restored) == ["x"]

    def test_is_a_table_that_somebodys_view_reads_and_no_other(self, db: Connection) -> None:
        warnings = warnings_of(db)
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

    def test_is_a_table_that_its_owner_renamed(self, q: Connection) -> None:
        warnings = warnings_of(q)
        q.send("x")
        q.execute("alter table pgque.event_1 rename to archive")
        make_and_drop(q, "another")
        q.rows("select * from pgque.maint_operations()")
        assert q.value(MAINTAIN) == 1
        assert warnings == []
        assert q.value("select ev_data from pgque.archive") == "x"


class TestDropped:
    def test_is_what_no_other_session_drops(self, db: Connection) -> None:
        make_and_drop(db, "a", "b", "c")
        second = db.another()
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

    def test_is_what_another_group_has_although_one_is_busy(self, db: Connection) -> None:
        db.make_queue("busy")
        make_and_drop(db, *(f"queue {number}" for number in range(20)))
        make_queues_up_to(db, 64)
        make_and_drop(db, "of another group")
        producer = db.another()
        with producer.transaction():
            producer.send("x", queue="busy")
            assert db.value(MAINTAIN) == 1
            assert tables(db, "event_64%") == []

    def test_is_what_maintenance_locks_last(self, db: Connection) -> None:
        """Producers of the group wait until the transaction ends."""
        make_and_drop(db, "gone")
        assert db.rows("select * from pgque.maint_steps()")[-1][0] == "maint_event_tables"


def test_a_dump_that_waits_for_a_drop_fails_instead_of_lacking_events(
    q: Connection, background: ThreadPoolExecutor
) -> None:
    q.send("x")
    dumping = q.another()
    with q.transaction():
        drop_queue(q, "q")
        # As pg_dump does: its snapshot sees the queue, then it locks each table by name.
        dumping.execute("begin isolation level repeatable read")
        assert dumping.value("select count(*) from pgque.queue") == 1
        lock = "lock table pgque.event_1 in access share mode"
        locked = background.submit(dumping.execute, lock)
        q.wait_until_blocked(dumping)
    with refused("42P01", "event_1"):
        locked.result()


def test_an_uninstall_waits_for_events_of_a_queue_that_was_created_meanwhile(
    q: Connection, background: ThreadPoolExecutor
) -> None:
    producer, loader, uninstalling = q.another(), q.another(), q.another()
    with producer.transaction():
        producer.value("select pgque.get_queue_info()")
        removed = background.submit(
            Connection.value, uninstalling, "select pgque.uninstall()::text"
        )
        q.wait_until_blocked(uninstalling)
        q.make_queue("new")
        insert = "insert into pgque.event_2_0 (ev_type, ev_data) values ('t', 'x')"
        with loader.transaction(force_rollback=True):
            loader.execute(insert)  # the session knows the table now, and locks it alone
        with loader.transaction():
            loader.execute(insert)
            producer.execute("rollback")
            time.sleep(1.5)  # enough for an attempt that gets all locks
    with refused("PQ020", '"new"'):
        removed.result()
    assert received(q, "new") == ["x"]
