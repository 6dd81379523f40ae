"""Capture beside other work: nested changes, other writers, other queues, and copies."""

import pytest

from tests.support.queues.sql import Connection, refused, run

# The types of the events and their tables, in the order of their ids.
EVENTS = "select ev_type, ev_extra1 from pgque.event order by ev_id"
APPENDED = "select ev_type, ev_data::json ->> 'a' from pgque.event order by ev_id"

ECHO = """
create table t (id int primary key); create table log (id int primary key, a text);
create function echo() returns trigger language plpgsql as $$ begin
    insert into log values (new.id); insert into log values (-new.id); return null; end $$;
create trigger echo after insert on t for each row execute function echo();
select pgque.capture('t', 'q'), pgque.capture('log', 'q');
"""
SETTING = "select current_setting('lock_timeout')"


@pytest.fixture(autouse=True)
def queue(db: Connection) -> None:
    db.make_queue()


def test_what_a_trigger_inserts_into_another_table_is_an_insert(db: Connection) -> None:
    run(db, ECHO)

    run(db, "begin; insert into t values (1); insert into t values (2); commit")
    run(db, "insert into log values (9)")

    nested = [("insert", "public.log"), ("insert", "public.log"), ("insert", "public.t")]
    assert db.rows(EVENTS) == [*nested * 2, ("insert", "public.log")]


NEXT = """
create table t (id int primary key);
create function next() returns trigger language plpgsql as $$ begin
    if new.id = 1 then insert into t values (2); end if; return null; end $$;
create trigger next after insert on t for each row execute function next();
select pgque.capture('t', 'q'); alter table t drop constraint t_pkey
"""


def test_a_nested_change_of_a_table_that_has_lost_its_key_goes_on(db: Connection) -> None:
    run(db, NEXT)

    run(db, "insert into t values (1)")

    assert db.rows(EVENTS) == [("insert", "public.t")] * 2


def test_a_key_that_is_made_again_is_another_shape(db: Connection) -> None:
    shape = "select pgque.table_facts('t', 'q') -> 'key'"
    run(db, "create table t (id int primary key)")
    was = db.value(shape)

    run(db, "alter table t drop constraint t_pkey; alter table t add primary key (id)")

    assert db.value(shape) != was


def test_a_partition_truncated_after_the_whole_table_sends_its_rows(db: Connection) -> None:
    run(db, "create table t (id int primary key) partition by list (id)")
    run(db, "create table one partition of t for values in (1)")
    run(db, "select pgque.capture('t', 'q'); truncate t")
    run(db, "insert into t values (1)")

    run(db, "truncate one")

    assert [kind for kind, _ in db.rows(EVENTS)] == ["truncate", "insert", "delete"]


def test_other_writers_get_by_while_capture_waits_for_one_and_uncapture_for_a_reader(
    db: Connection,
) -> None:
    run(db, "create table t (id int primary key)")
    other = db.another()
    run(other, "set statement_timeout = '10s'")
    for call, number in (("capture", 1), ("uncapture", 3)):
        first = f"insert into t values ({number})" if call == "capture" else "select from t"
        holder = db.another()
        run(holder, f"set idle_in_transaction_session_timeout = '20s'; begin; {first}")
        answer = db.blocked(lambda s, call=call: s.value(f"select pgque.{call}('t', 'q')"))

        run(other, f"insert into t values ({number + 1})")
        run(holder, "commit")

        assert answer.result(60) == 1
    run(db, "insert into t values (5)")
    assert [kind for kind, _ in db.rows(EVENTS)] == ["insert"], "of what came between the two"


def test_capture_says_so_if_the_writers_never_end(db: Connection) -> None:
    run(db, "create table t (id int primary key)")
    text = db.value("select pg_get_functiondef('pgque.capture'::regproc)")
    quick = text.replace("constant integer := 10", "constant integer := 1").replace("'1s'", "'1ms'")
    run(db, quick)
    run(db.another(), "begin; insert into t values (1)")

    with refused("55P03", "t could not be captured", "within 1 attempts"):
        run(db, "select pgque.capture('t', 'q')")


def test_nothing_is_locked_before_the_table_whose_partitions_are_captured(db: Connection) -> None:
    run(db, "create table t (id int primary key) partition by range (id)")
    run(db, "create table t1 partition of t for values from (0) to (9)")
    for call in ("capture", "uncapture"):
        holder = db.another()
        run(holder, "begin; lock table only t")
        answer = db.blocked(lambda s, call=call: s.value(f"select pgque.{call}('t', 'q')"))
        held = db.value("select count(*) from pg_locks where relation = 't1'::regclass")
        run(holder, "commit")
        assert (held, answer.result(60)) == (0, 2)


def test_capture_leaves_the_lock_timeout_as_it_was(db: Connection) -> None:
    run(db, "create table t (id int primary key); set lock_timeout = '7s'")

    run(db, "begin; set local lock_timeout = '5s'; select pgque.capture('t', 'q')")

    assert db.value(SETTING) == "5s"
    run(db, "commit")
    assert db.value(SETTING) == "7s"


def test_the_primary_key_comes_first_and_a_plain_index_is_no_key(db: Connection) -> None:
    run(db, "create table t (id int primary key, b int not null unique)")
    run(db, "alter table t replica identity using index t_b_key")
    run(db, "select pgque.capture('t', 'q')")
    assert db.value("select key from pgque.captured_tables()") == ["id"]

    run(db, "create table u (id int); create index on u (id)")
    with refused("PQ005", "has no key"):
        run(db, "select pgque.capture('u', 'q')")


@pytest.mark.server(18)
def test_virtual_columns_are_not_captured(db: Connection) -> None:
    run(db, "create table t (id int primary key, g int generated always as (id + 1) virtual)")
    run(db, "select pgque.capture('t', 'q'); insert into t values (1)")

    assert db.value("select ev_data from pgque.event") == '{"id":1}'


def test_a_partition_that_another_queue_captured_is_still_missing(db: Connection) -> None:
    db.make_queue("other")
    run(db, "create table t (id int primary key) partition by list (id)")
    run(db, "select pgque.capture('t', 'q')")
    run(db, "create table one partition of t for values in (1); select pgque.capture('t', 'other')")

    assert "partition public.one" in db.value("select problem from pgque.captured_tables('q')")
    assert db.value("select problem from pgque.captured_tables('other')") is None


def test_a_second_call_leaves_the_triggers_that_are_right_as_they_are(db: Connection) -> None:
    run(db, 'create table "T" (id int primary key) partition by list (id)')
    run(db, """create table one partition of "T" for values in (1); create table plain (n int)""")
    triggers = "select tgrelid::regclass::text, tgname, xmin::text from pg_trigger order by 1, 2"
    calls = """select pgque.capture('"T"', 'q'), pgque.capture('plain', 'q', true)"""
    run(db, calls)
    before = db.rows(triggers)
    run(db, calls)
    assert db.rows(triggers) == before

    run(db, """create table two partition of "T" for values in (2)""")
    assert db.value("""select pgque.capture('"T"', 'q')""") == 3
    after = set(db.rows(triggers))
    assert after > set(before)
    assert {row[0] for row in after - set(before)} == {"two"}
    run(db, "alter table one disable trigger user; alter table plain rename to other")
    run(db, calls.replace("'plain'", "'other'"))
    assert {row[0] for row in set(db.rows(triggers)) - after} == {"one", "other"}


def test_a_snapshot_tick_comes_at_once_and_has_the_snapshot_of_its_transaction(
    db: Connection,
) -> None:
    with refused("PQ005", "a statement's snapshot"):
        db.value("select pgque.snapshot_tick('q')")
    run(db, "begin isolation level repeatable read")
    seen = db.value("select pg_current_snapshot()::text")

    tick = db.value("select pgque.snapshot_tick('q')")

    run(db, "commit")
    made = "select tick_snapshot::text from pgque.tick where tick_id = %s"
    assert db.value(made, tick) == seen


PROBLEM = "select problem from pgque.captured_tables()"


def test_no_writer_of_a_table_without_a_key_is_stopped_whatever_it_does(db: Connection) -> None:
    run(db, "create table log (a int, b text); select pgque.capture('log', 'q', i_append => true)")

    run(db, "insert into log values (1), (1); update log set a = 2; delete from log; truncate log")

    assert db.rows(APPENDED) == [
        *[("insert", "1")] * 2, *[("delete", "1")] * 2, *[("update", "2")] * 2,
        *[("delete", "2")] * 2, ("truncate", None),
    ]  # fmt: skip
    assert db.value(PROBLEM) is None


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


def test_partitions_without_a_key_are_one_table_also_for_its_triggers(db: Connection) -> None:
    run(db, "create table log (a int) partition by range (a)")
    run(db, "create table p1 partition of log for values from (0) to (10)")
    run(db, "select pgque.capture('log', 'q', true); insert into log values (1)")
    run(db, "insert into p1 values (2); create table p2 partition of log default")
    assert "partition public.p2 has no triggers" in db.value(PROBLEM)
    run(
        db,
        "select pgque.capture('log', 'q', true);"
        "create function echo() returns trigger language plpgsql as $$ begin"
        " if new.a > 10 then insert into log values (-new.a); end if; return null; end $$;"
        "create trigger echo after insert on p2 for each row execute function echo();"
        "insert into p2 values (12)",
    )

    assert sorted(db.rows(APPENDED)) == [("insert", each) for each in ("-12", "1", "12", "2")]
    assert db.rows("select distinct ev_extra1 from pgque.event") == [("public.log",)]


LIST = "select table_name, problem from pgque.captured_tables() order by problem nulls first"


def test_a_partition_that_was_detached_sends_nothing_until_it_is_attached(db: Connection) -> None:
    run(db, "create table t (id int primary key) partition by list (id)")
    run(db, "create table p1 partition of t for values in (1)")
    run(db, "create table p2 partition of t for values in (2, 3) partition by list (id)")
    run(db, "create table p3 partition of p2 for values in (2, 3)")
    run(db, "select pgque.capture('t', 'q'); alter table t rename to u; insert into p3 values (2)")
    sent = "select count(*) from pgque.event where ev_extra1 = 'public.t'"
    assert db.value(sent) == 1, "of a table that is renamed"
    run(db, "alter table u rename to t; alter table t detach partition p2")
    run(db, "insert into p2 values (3); delete from p3; truncate p3; truncate p2")
    run(db, "alter table p2 rename to other; insert into p3 values (3)")
    assert db.value(sent) == 1
    assert db.rows(LIST) == [("public.t", None)]
    run(db, "alter table t attach partition other for values in (2, 3); insert into p3 values (2)")
    assert db.value(sent) == 2
    assert db.rows(LIST) == [("public.t", None)]
    run(db, "alter table t detach partition other; select pgque.capture('other', 'q')")
    run(db, "insert into p3 values (2) on conflict do nothing; insert into t values (1)")
    assert db.value(sent) == 3
    assert db.rows(LIST) == [("public.other", None), ("public.t", None)]


def test_a_table_in_the_place_of_one_that_was_renamed_is_told_from_it(db: Connection) -> None:
    run(db, "create table t (id int primary key); select pgque.capture('t', 'q')")
    run(db, "alter table t rename to old; create table t (id int primary key)")
    assert "it is named public.old now" in db.rows(LIST)[0][1]

    run(db, "select pgque.capture('t', 'q')")

    assert "table public.old sends its changes as public.t too" in db.rows(LIST)[1][1]


INHERITS = "create table t (id int primary key); create table c (primary key (id)) inherits (t)"


def test_a_table_that_a_statement_on_another_one_changes_is_not_captured(db: Connection) -> None:
    run(db, INHERITS)

    with refused("PQ005", "inherits public.t", "alter table public.c no inherit public.t"):
        run(db, "select pgque.capture('c', 'q')")
    run(db, "alter table c no inherit t; select pgque.capture('c', 'q'); alter table c inherit t")
    run(db, "insert into c values (1); update t set id = 2")

    assert db.rows(EVENTS) == [("insert", "public.c")]
    assert "it inherits public.t, whose statements" in db.rows(LIST)[0][1]


# As the worker of a subscription writes down that it copies a table.
SUBSCRIBED = """
create subscription s connection 'dbname=x' publication p with (connect = false);
insert into pg_subscription_rel (srsubid, srrelid, srsubstate)
select oid, '{table}'::regclass, 'i' from pg_subscription where subname = 's'
"""
UNSUBSCRIBED = "alter subscription s set (slot_name = none); drop subscription s"


def test_a_table_of_a_subscription_is_not_captured(db: Connection) -> None:
    run(db, "create table t (id int primary key); select pgque.capture('t', 'q')")
    run(db, "create table p (id int primary key) partition by list (id)")
    run(db, "create table p1 partition of p for values in (1); select pgque.capture('p', 'q')")
    words = "it gets rows of the subscription s, whose worker fires no triggers of statements"
    for table, whole in (("t", "t"), ("p1", "p")):
        run(db, SUBSCRIBED.format(table=table))
        try:
            with refused("PQ005", words, "in the database that publishes it"):
                run(db, f"select pgque.capture('{whole}', 'q')")
            assert [name for name, problem in db.rows(LIST) if problem and words in problem] == [
                f"public.{whole}"
            ]
        finally:
            run(db, UNSUBSCRIBED)
    assert {problem for _, problem in db.rows(LIST)} == {None}


def test_a_partition_has_the_key_of_the_whole_table(db: Connection) -> None:
    run(
        db,
        "create table t (a int not null, b int not null, c int) partition by list (a);"
        "create unique index t_key on t (a, b); alter table t replica identity using index t_key;"
        "create table t1 partition of t for values in (1); alter table t1 add primary key (c);"
        "create table t2 partition of t for values in (2); select pgque.capture('t', 'q');"
        "insert into t values (1, 1, 1), (2, 1, 2); truncate pgque.event",
    )

    run(db, "update t1 set b = 7; update t2 set b = 8")

    events = db.rows("select ev_type, ev_data::json ->> 'b' from pgque.event order by ev_id")
    assert events == [("delete", "1"), ("update", "7"), ("delete", "1"), ("update", "8")]


def test_a_table_with_a_partition_that_has_no_such_triggers_is_not_captured(
    db: Connection,
) -> None:
    run(db, "create table t (id int) partition by list (id); select pgque.capture('t', 'q', true)")
    run(db, "create foreign data wrapper w; create server s foreign data wrapper w")
    run(db, "create foreign table far partition of t for values in (1) server s")

    with refused("PQ005", "has the partition public.far, a foreign table", "detach partition"):
        run(db, "select pgque.capture('t', 'q', true)")


TOUCHED = """
create table t (id int primary key, a text);
create function touch() returns trigger language plpgsql as $$ begin
    if pg_trigger_depth() = 1 then update t set a = a || '!' where id = new.id; end if;
    return null; end $$;
create trigger touch after insert on t for each row execute function touch();
select pgque.capture('t', 'q'), pgque.capture('t', 'other')
"""


def test_two_queues_get_the_same_of_a_nested_change(db: Connection) -> None:
    db.make_queue("other")
    run(db, TOUCHED)

    run(db, "insert into t values (1, 'x'), (2, 'y'); truncate t")

    query = (
        "select ev_type, ev_data::json ->> 'a' from pgque.event_{} order by ev_type, ev_data, ev_id"
    )
    found = [db.rows(query.format(db.queue_id(queue))) for queue in ("q", "other")]
    assert found[0] == found[1]
    assert [row for row in found[0] if row[0] == "update"] == [
        *[("update", "x!")] * 2,
        *[("update", "y!")] * 2,
    ]
