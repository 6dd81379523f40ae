"""Capture of tables without a key, whose rows are only inserted."""

import pytest

from tests.support.queues.sql import Connection, refused, run

EVENTS = "select ev_type, ev_data::json ->> 'a' from pgque.event order by ev_id"
PROBLEM = "select problem from pgque.captured_tables()"


@pytest.fixture(autouse=True)
def queue(db: Connection) -> None:
    db.make_queue()


def test_no_writer_is_stopped_whatever_it_does(db: Connection) -> None:
    run(db, "create table log (a int, b text); select pgque.capture('log', 'q', i_append => true)")

    run(db, "insert into log values (1), (1); update log set a = 2; delete from log; truncate log")

    assert db.rows(EVENTS) == [
        *[("insert", "1")] * 2, *[("delete", "1")] * 2, *[("update", "2")] * 2,
        *[("delete", "2")] * 2, ("truncate", None),
    ]  # fmt: skip
    assert db.value(PROBLEM) is None


def test_what_a_trigger_inserts_into_the_table_is_an_insert(db: Connection) -> None:
    run(
        db,
        "create table log (a int); create function echo() returns trigger language plpgsql as $$"
        " begin if new.a > 0 then insert into log values (-new.a); end if; return null; end $$;"
        "create trigger echo after insert on log for each row execute function echo();"
        "select pgque.capture('log', 'q', true); insert into log values (1), (2)",
    )

    assert sorted(db.rows(EVENTS)) == [("insert", each) for each in ("-1", "-2", "1", "2")]


def test_append_is_for_tables_without_a_key_alone(db: Connection) -> None:
    run(db, "create table log (a int); create table t (id int primary key)")
    with refused("PQ005", "has no key", "append"):
        run(db, "select pgque.capture('log', 'q')")
    with refused("PQ005", "has a key: capture it without append"):
        run(db, "select pgque.capture('t', 'q', true)")
    run(db, "select pgque.capture('log', 'q', true); alter table log add primary key (a)")
    assert "it has a key now" in db.value(PROBLEM)

    run(db, "select pgque.capture('log', 'q')")

    assert db.value(PROBLEM) is None


def test_partitions_without_a_key_are_one_table(db: Connection) -> None:
    run(db, "create table log (a int) partition by range (a)")
    run(db, "create table p1 partition of log for values from (0) to (10)")
    run(db, "select pgque.capture('log', 'q', true); insert into log values (1)")
    run(db, "insert into p1 values (2); create table p2 partition of log default")
    assert "partition public.p2 has no triggers" in db.value(PROBLEM)
    run(db, "select pgque.capture('log', 'q', true); insert into p2 values (12)")

    assert db.rows(EVENTS) == [("insert", each) for each in ("1", "2", "12")]
    assert db.rows("select distinct ev_extra1 from pgque.event") == [("public.log",)]
