"""How events reach the event tables of their queue, which are partitions of one table."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.support.queues import Connection, refused
from tests.support.races import Another, race

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


def test_a_queue_can_be_closed_and_opened_for_every_call(db: Connection) -> None:
    db.make_queue()
    db.value("select pgque.set_queue_config('q', 'disable_insert', 'true')")
    for call in CALLS:
        with refused("PQ006", '"q"'):
            db.value(call, "q", "a")
    db.execute("set session_replication_role = replica")
    for number, call in enumerate(CALLS):
        db.value(call, "q", str(number))
    db.execute("reset session_replication_role")
    db.value("select pgque.set_queue_config('q', 'disable_insert', 'false')")
    assert received(db) == [str(number) for number in range(len(CALLS))]


def test_rotation_changes_the_table_under_a_cached_plan(db: Connection, another: Another) -> None:
    db.make_queue()
    producer = another()
    for number in range(7):
        producer.send(f"{number}")
        assert received(db) == [f"{number}"]
        assert db.rotate()
        current = db.value("select queue_cur_table from pgque.queue")
        assert current == (number + 1) % 3
        producer.send("x")
        assert db.value(f"select count(*) from pgque.event_{db.queue_id()}_{current}") == 1
        assert received(db) == ["x"]


def test_a_callers_search_path_does_not_reach_the_insert(db: Connection) -> None:
    db.make_queue()
    db.execute("create schema evil")
    db.execute("create function evil.nextval(regclass) returns bigint language sql as 'select 666'")
    db.execute("create function evil.times(int, int) returns int language sql as 'select 1 / 0'")
    for name in ("*", "+", "="):
        result = "leftarg = int, rightarg = int, function = evil.times"
        db.execute(f"create operator evil.{name} ({result})".encode())
    db.execute("set search_path = evil, pg_catalog, pgque")
    sent = [
        db.value(call.replace("::text", "::pg_catalog.text"), "q", f"{n}")
        for n, call in enumerate(CALLS)
    ]
    db.execute("reset search_path")
    assert 666 not in sent
    assert received(db) == [f"{number}" for number in range(len(CALLS))]


class TestCreation:
    @pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
    def test_waits_for_no_producer_of_the_group(
        self, db: Connection, another: Another, isolation: str
    ) -> None:
        db.make_queue()
        producer = another()
        with producer.transaction():
            producer.execute(f"set transaction isolation level {isolation}".encode())
            producer.send("before")
            db.make_queue("another")
            producer.send("after")
        producer.send("there", queue="another")
        assert (received(db), received(db, "another")) == (["before", "after"], ["there"])

    @pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
    def test_waits_for_another_one(self, db: Connection, another: Another, isolation: str) -> None:
        def make_second(session: Connection) -> None:
            session.execute(f"set default_transaction_isolation = '{isolation}'".encode())
            session.make_queue("second")

        _, made = race(another, lambda first: first.make_queue("first"), make_second)
        made.result()
        for queue in ("first", "second"):
            db.send(f"to {queue}", queue=queue)
            assert received(db, queue) == [f"to {queue}"]


class TestDropping:
    def test_a_dropped_queue_is_unknown_and_made_again_gets_its_own_events(
        self, db: Connection
    ) -> None:
        db.make_queue(consumers=())
        db.send("of the old queue")
        db.value("select pgque.drop_queue('q')")
        for call in CALLS:
            with refused("PQ001", '"q"'):
                db.value(call, "q", "x")
        db.make_queue()
        db.send("before")
        db.send("after")
        assert received(db) == ["before", "after"]

    @pytest.mark.parametrize("call", CALLS)
    def test_a_producer_that_waited_for_it_is_refused(
        self, db: Connection, another: Another, background: ThreadPoolExecutor, call: str
    ) -> None:
        db.make_queue(consumers=())
        producer = another()
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

    def test_waits_for_no_producer_of_another_queue(self, db: Connection, another: Another) -> None:
        db.make_queue("busy")
        db.make_queue(consumers=())
        db.send("x")
        producer = another()
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

    def test_a_queue_that_is_being_created_keeps_its_tables(
        self, db: Connection, another: Another
    ) -> None:
        creator = another()
        with creator.transaction():
            creator.make_queue()
            db.value("select pgque.maint()")
        db.send("x")
        assert received(db) == ["x"]
