"""Capture by statement: the events of a table, applied in their order, make the table."""

import json
from typing import Any

import pytest

from tests.support.queues.sql import Connection, refused, run

# The events of a queue in the order of their ids, as a consumer reads them.
EVENTS = """
select ev_type, ev_data, ev_extra1 from pgque.event
where ev_table / 4 = (select queue_id from pgque.queue where queue_name = %s) order by ev_id
"""


def found(db: Connection, queue: str = "q") -> list[tuple[str, dict[str, Any], str]]:
    return [(kind, json.loads(data), table) for kind, data, table in db.rows(EVENTS, queue)]


def kinds(db: Connection) -> list[str]:
    return [kind for kind, _, _ in found(db)]


def applied(db: Connection, table: str, key: tuple[str, ...] = ("id",)) -> list[dict[str, Any]]:
    """What a replica has that began with an empty table."""
    replica: dict[tuple[Any, ...], dict[str, Any]] = {}
    for kind, row, name in found(db):
        if name != table:
            continue
        if kind == "truncate":
            replica.clear()
        elif kind == "delete":
            replica.pop(tuple(row[each] for each in key), None)
        else:
            replica[tuple(row[each] for each in key)] = row
    return sorted(replica.values(), key=str)


def table_of(db: Connection, table: str) -> list[dict[str, Any]]:
    stored = db.rows(f"select row_to_json(t)::text from {table} t")
    return sorted((json.loads(row) for (row,) in stored), key=str)


def check(db: Connection, table: str = "public.t", key: tuple[str, ...] = ("id",)) -> None:
    assert applied(db, table, key) == table_of(db, table)


@pytest.fixture(autouse=True)
def queue(db: Connection) -> None:
    db.make_queue()


def test_each_statement_makes_an_event_for_each_row_with_the_whole_row(db: Connection) -> None:
    run(db, "create table t (id int primary key, a text, b numeric)")
    assert db.value("select pgque.capture('t', 'q')") == 1

    run(db, "insert into t values (1, 'x', 1.50), (2, null, 2)")
    run(db, "update t set a = 'y' where id = 1")
    run(db, "delete from t where id = 2")
    run(db, "truncate t")

    name = "public.t"
    assert found(db) == [
        ("insert", {"id": 1, "a": "x", "b": "1.50"}, name),
        ("insert", {"id": 2, "a": None, "b": "2"}, name),
        ("update", {"id": 1, "a": "y", "b": "1.50"}, name),
        ("delete", {"id": 2, "a": None, "b": "2"}, name),
        ("truncate", {}, name),
    ]


def test_a_statement_without_rows_makes_no_event_and_one_rolled_back_neither(
    db: Connection,
) -> None:
    run(db, "create table t (id int primary key)")
    run(db, "select pgque.capture('t', 'q')")

    run(db, "insert into t select 1 where false; update t set id = 2; delete from t")
    run(db, "begin; insert into t values (1); savepoint s; insert into t values (2); rollback to s")
    run(db, "commit")

    assert [row["id"] for _, row, _ in found(db)] == [1]


def test_keys_that_change_and_swap_leave_the_rows_that_are_there(db: Connection) -> None:
    run(db, "create table t (id int primary key deferrable initially deferred, a text)")
    run(db, "select pgque.capture('t', 'q')")
    run(db, "insert into t select n, 'row ' || n from generate_series(1, 5) n")

    run(db, "update t set id = 3 - id where id < 3")
    check(db)
    run(db, "update t set id = id + 1")
    run(db, "update t set id = 100 where id = 4")

    check(db)
    assert kinds(db).count("delete") == 2


NESTED = {
    "an AFTER ROW trigger that updates the same row": """
        create function touch() returns trigger language plpgsql as
        $$ begin update t set a = new.a || '!' where id = new.id; return null; end $$;
        create trigger touch after insert or update of id on t
        for each row execute function touch();
        insert into t values (1, 'x'), (2, 'y'); update t set id = id + 10""",
    "one that deletes what the statement wrote": """
        create function drop_odd() returns trigger language plpgsql as
        $$ begin delete from t where id = new.id and id % 2 = 1; return null; end $$;
        create trigger drop_odd after insert or update on t
        for each row execute function drop_odd();
        insert into t select n, 'x' from generate_series(1, 4) n; update t set a = 'z'""",
    "an AFTER STATEMENT trigger with an earlier name": """
        create function number() returns trigger language plpgsql as
        $$ begin if pg_trigger_depth() = 1 then update t set a = id::text; end if;
        return null; end $$;
        create trigger a_first after insert or update on t execute function number();
        insert into t values (1, 'x'); update t set a = 'y'""",
    "a row deleted and inserted again": """
        create function again() returns trigger language plpgsql as
        $$ begin if pg_trigger_depth() = 1 then
             delete from t where id = new.id; insert into t values (new.id, 'again');
           end if; return null; end $$;
        create trigger again after update on t for each row execute function again();
        insert into t values (1, 'x'), (2, 'x'); update t set a = 'y'""",
    "ON CONFLICT after it, in one transaction": """
        create function once() returns trigger language plpgsql as
        $$ begin if pg_trigger_depth() = 1 then update t set a = 'inner'; end if;
        return null; end $$;
        create trigger once after insert on t for each row execute function once();
        begin; insert into t values (1, 'x'); savepoint s; insert into t values (2, 'y');
        rollback to s; insert into t values (1, 'z') on conflict (id) do update set a = 'outer';
        commit""",
}


@pytest.mark.parametrize("script", NESTED.values(), ids=NESTED.keys())
def test_a_change_within_a_statement_is_not_undone_by_it(db: Connection, script: str) -> None:
    run(db, "create table t (id int primary key, a text)")
    run(db, "select pgque.capture('t', 'q')")

    run(db, script)

    check(db)


STATEMENTS = {
    "ON CONFLICT": """insert into t values (1, 'new'), (9, 'new')
        on conflict (id) do update set a = excluded.a || t.a""",
    "MERGE": """merge into t using (values (1), (2), (7)) v (id) on t.id = v.id
        when matched and t.id = 1 then delete when matched then update set a = 'merged'
        when not matched then insert values (v.id, 'merged')""",
    "a writable CTE": """with gone as (delete from t where id = 1 returning *),
        more as (update t set a = 'cte' where id = 2)
        insert into t select id + 50, a from gone""",
    "two inserts in one query": """with one as (insert into t values (20, 'one'))
        insert into t values (21, 'two')""",
    "a rule": """create rule r as on delete to t where old.id = 1 do also
        insert into t values (77, 'by rule'); delete from t where id < 3""",
    "COPY and a view": "create view v as select * from t; update v set a = 'view' where id = 3",
    "a cascade": """alter table t add parent int references t on delete cascade on update cascade;
        update t set parent = id - 1 where id > 1; update t set id = id + 100; delete from t
        where id = 101""",
}


@pytest.mark.parametrize("script", STATEMENTS.values(), ids=STATEMENTS.keys())
def test_each_kind_of_statement_is_seen_whole(db: Connection, script: str) -> None:
    if "merge" in script and db.info.server_version < 150000:
        pytest.skip("this server has no MERGE")
    run(db, "create table t (id int primary key, a text)")
    run(db, "select pgque.capture('t', 'q')")
    run(db, "insert into t select n, 'row ' || n from generate_series(1, 4) n")

    run(db, script)

    check(db)


def test_partitions_are_one_table_whoever_is_written_to(db: Connection) -> None:
    run(
        db,
        "create table t (id int primary key, a text) partition by range (id);"
        "create table low partition of t for values from (0) to (100);"
        "create table high partition of t for values from (100) to (200) partition by range (id);"
        "create table higher partition of high for values from (100) to (200)",
    )
    assert db.value("select pgque.capture('t', 'q')") == 4

    run(db, "insert into t values (1, 'x'), (2, 'x'), (105, 'x')")
    run(db, "insert into low values (3, 'direct'); update higher set a = 'direct'")
    run(db, "update t set id = id + 100 where id = 1")
    run(db, "delete from high where id = 105")
    check(db)

    run(db, "insert into t values (101, 'x') on conflict do nothing; truncate low")
    check(db)
    assert table_of(db, "t") != []
    before = kinds(db).count("delete")
    run(db, "insert into t values (5, 'y'); truncate t; insert into t values (6, 'z')")
    check(db)
    assert kinds(db).count("delete") == before
    assert kinds(db).count("truncate") == 1
    assert {table for _, _, table in found(db)} == {"public.t"}
    run(db, "begin; truncate t; insert into t values (7, 'z'), (107, 'z'); truncate low; commit")
    check(db)


def test_a_partition_that_came_later_is_named_until_it_is_captured(db: Connection) -> None:
    listed = "select queue_name, table_name, key, problem from pgque.captured_tables()"
    run(db, "create table t (id int primary key) partition by list (id)")
    run(db, "select pgque.capture('t', 'q')")
    assert db.rows(listed) == [("q", "public.t", ["id"], None)]
    run(db, "create table one partition of t for values in (1)")

    ((_, _, _, problem),) = db.rows(listed)
    assert problem == "partition public.one has no triggers: call pgque.capture again"
    assert db.value("select pgque.capture('t', 'q')") == 2
    run(db, "insert into one values (1)")
    check(db)
    assert db.rows(listed)[0][3] is None
    run(db, "alter table one disable trigger user")
    assert "partition public.one" in db.rows(listed)[0][3]
    run(db, "alter table t disable trigger user")
    assert "is disabled" in db.rows(listed)[0][3]


def test_a_key_that_changes_is_followed_and_a_name_by_a_second_call(db: Connection) -> None:
    problem = "select problem from pgque.captured_tables('q')"
    run(
        db,
        'create schema "S"; create table "S"."T, x" ("A b" int, "c\'d" text, primary key ("A b"))',
    )
    run(db, """select pgque.capture('"S"."T, x"', 'q')""")
    run(db, """insert into "S"."T, x" values (1, 'a'); update "S"."T, x" set "A b" = 2""")
    check(db, '"S"."T, x"', ("A b",))

    run(db, 'alter table "S"."T, x" rename to u')
    assert "is named" in db.value(problem)
    run(db, """select pgque.capture('"S".u', 'q')""")
    assert db.value(problem) is None
    run(db, 'alter table "S".u drop constraint "T, x_pkey"')
    assert "no longer has a key" in db.value(problem)
    run(db, 'insert into "S".u values (9)')
    run(db, 'update "S".u set "A b" = 8 where "A b" = 9')
    assert kinds(db)[-2:] == ["delete", "update"]
    run(db, 'delete from "S".u where "A b" = 8')
    run(db, 'alter table "S".u rename "A b" to "A"')
    run(
        db,
        'alter table "S".u rename "A" to "A b"; alter table "S".u add primary key ("A b", "c\'d")',
    )

    assert db.value(problem) is None
    run(db, """insert into "S".u values (2, 'b'); update "S".u set "c'd" = 'c' where "c'd" = 'b'""")
    assert {"A b": 2, "c'd": "c"} in applied(db, '"S".u', ("A b", "c'd"))


VALUES = {
    "numeric": "12345678901234567890.123456789012345678901234567890",
    "float8": "0.30000000000000004",
    "float4": "0.1",
    "int8": "9223372036854775807",
    "timestamptz": "2026-01-31 12:00:00.123456+05:30",
    "timestamp": "infinity",
    "interval": "1 mon -3 days +00:00:01.5",
    "bytea": "\\x00ff",
    "text[]": '{a,NULL,"b,c"}',
    "jsonb": '{"a": [1, 1.50]}',
    "daterange": "[2026-01-01,2026-02-01)",
    "uuid": "5e0b40d3-0000-4000-8000-000000000000",
    "regclass": "pg_class",
}
EXACT = "numeric float8 float4 interval bytea text[] jsonb daterange regclass"
SESSION = """set datestyle = 'German'; set intervalstyle = 'sql_standard';
set bytea_output = escape; set extra_float_digits = -10; set time zone 'Asia/Kolkata';
set quote_all_identifiers = on; set search_path = ''"""


def test_values_do_not_depend_on_the_session(db: Connection) -> None:
    columns = ", ".join(f'"{kind}" {kind}' for kind in VALUES)
    run(db, f"create table t (id int primary key, {columns})")
    run(db, "select pgque.capture('t', 'q')")
    texts = ", ".join(f"$${text}$$" for text in VALUES.values())

    run(db, f"insert into t values (1, {texts})")
    run(db, SESSION)
    run(db, f"insert into public.t values (2, {texts})")
    run(db, "reset all")

    (_, first, _), (_, second, _) = found(db)
    assert {**first, "id": 2, "timestamptz": None} == {**second, "timestamptz": None}
    assert first.items() >= {kind: VALUES[kind] for kind in EXACT.split()}.items()
    assert second["timestamptz"] == "2026-01-31T06:30:00.123456+00:00"


REFUSED = {
    "create view v as select 1 a": ("v", "is not a table"),
    "create table nokey (a int)": ("nokey", "has no key"),
    "create temporary table tmp (id int primary key)": ("tmp", "is temporary"),
    "create table p (id int primary key) partition by list (id);"
    "create table p1 partition of p for values in (1)": ("p1", "capture the whole table p"),
    "select": ("pgque.queue", "belongs to the system"),
}


def test_what_cannot_be_captured_is_refused_before_anything_is_changed(db: Connection) -> None:
    for made, (table, words) in REFUSED.items():
        run(db, made)
        with refused("PQ005", words):
            run(db, f"select pgque.capture('{table}', 'q')")
    with refused("PQ001", "no such queue"):
        run(db, "create table ok (id int primary key); select pgque.capture('ok', 'no such queue')")


def test_a_table_may_go_to_several_queues_and_uncapture_ends_one(db: Connection) -> None:
    db.make_queue("other")
    run(db, "create table t (id int primary key)")
    run(db, "select pgque.capture('t', 'q'), pgque.capture('t', 'other')")
    run(db, "insert into t values (1)")

    assert db.value("select pgque.uncapture('t', 'q')") == 1
    run(db, "insert into t values (2)")

    assert len(found(db)) == 1
    assert len(found(db, "other")) == 2
    assert db.rows("select queue_name from pgque.captured_tables()") == [("other",)]
    assert db.value("select pgque.uncapture('t', 'q')") == 0
