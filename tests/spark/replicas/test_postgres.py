"""Replicas in PostgreSQL: one transaction a batch, in tables that are nobody else's."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

import psycopg
import pytest

from pgque_dagster.client.errors import InvalidArgument, PgqueError
from pgque_dagster.client.replicas.key_parts import KeyPart
from pgque_dagster.client.replicas.postgres.location import PostgresReplicas
from pgque_dagster.client.replicas.spec import TableSpec
from tests.support.replicas.faults import Faults, Killed, die
from tests.support.replicas.replication import PostgresReplication

TYPES = (
    "create type mood as enum ('sad', 'fine'); create type pair as (a int, b text);"
    "create domain small as numeric(4,1);"
    "create table t (id bigint primary key, i int[], m mood, p pair, s small, j json, jb jsonb,"
    " r int4range, ip inet, iv interval, by bytea, n numeric, f float8, d date, ts timestamp,"
    " tz timestamptz, c char(5), v varchar(7), u uuid, money money, cl regclass, b bool,"
    ' bi bit(3), "Quoted %%s ""Name" text, g bigint generated always as (id * 2) stored);'
)
ROWS = (
    """insert into t values (1, '{1,null,3}', 'fine', '(1,"a b")', 1.5, ' {"b": 1, "a":null}',
    'null', '[1,5)', '10.0.0.1/8', '1 mon -2 days 03:04:05.6', '\\x00ff', 'NaN', '-0', 'infinity',
    '0044-03-15 12:00 BC', '-infinity', 'ab', '', gen_random_uuid(), 12.5, 'pg_class',
    true, '101', 'täb\t\\n "q" %');"""
    "insert into t (id) values (2);"
    "insert into t (id, n, f, j) values (3, 1e-50, 'NaN', '\"text\"');"
)
AS_TEXT = "select t::text from (select id, {} from t) t order by id"


def columns(replication: PostgresReplication) -> str:
    with replication.connect() as db:
        found = db.execute(
            "select string_agg(quote_ident(attname), ', ' order by attnum) from pg_attribute"
            " where attrelid = 't'::regclass and attnum > 1"
        )
        return str(found.fetchall()[0][0])


def check_texts(replication: PostgresReplication) -> None:
    query = AS_TEXT.format(columns(replication))
    with replication.connect() as db:
        expected = db.execute(query.encode()).fetchall()
    assert replication.there(query) == expected


def test_values_of_each_type_arrive_as_they_are_printed(postgres: PostgresReplication) -> None:
    postgres.begin(TYPES + ROWS)
    check_texts(postgres)
    postgres.follow("delete from t; " + ROWS + "update t set id = id + 10 where id < 3")
    check_texts(postgres)
    assert postgres.verify().is_equal
    assert len(postgres.copied) == 1
    postgres.there('update t set j = \'{"b": 1,"a":null}\' where id = 11')
    assert postgres.verify().differences == 1


def test_floats_keep_all_digits_whatever_the_target_prints(postgres: PostgresReplication) -> None:
    postgres.begin("create table t (id int primary key, f float8); insert into t values (1, 0.3)")
    ((name,),) = postgres.there("select current_database()")
    postgres.there(f"alter database {name} set extra_float_digits = 0")
    postgres.follow("update t set f = 0.1::float8 + 0.2::float8")
    assert postgres.there("select f = 0.1::float8 + 0.2::float8 from t") == [(True,)]


def test_a_function_of_somebody_else_decides_about_no_part(postgres: PostgresReplication) -> None:
    postgres.begin("create table t (id int primary key); insert into t values (1), (2), (3)")
    postgres.there("create function mod(bigint, int) returns bigint language sql return 2")
    parts = [KeyPart(number, 2, ("id",), None) for number in (1, 2)]
    assert [postgres.verify(part=part).differences for part in parts] == [0, 0]


def test_a_batch_that_is_replayed_writes_no_row(postgres: PostgresReplication) -> None:
    postgres.sql("create table t (id int primary key, v int); insert into t values (1, 1), (2, 2)")
    postgres.capture("public.t")
    for change in ("select 1", "update t set v = 3 where id = 1"):
        postgres.sql(change)
        postgres.tick()
        postgres.run(ack=False)
        written = postgres.there("select id, xmin, ctid from t")
        postgres.run(ack=False)
        postgres.run()
        assert postgres.there("select id, xmin, ctid from t") == written
    assert len(postgres.copied) == 1, "a copy that was stored and not acked is taken over"
    postgres.follow_and_check("insert into t values (3, 3)")
    assert len(postgres.copied) == 1


def test_a_copy_writes_only_rows_that_differ(postgres: PostgresReplication) -> None:
    postgres.begin(
        "create table t (id int primary key, v int); insert into t values (1, 1), (2, 2)"
    )
    written = postgres.there("select xmin from t where id = 1")
    postgres.there("create view sums as select sum(v) from t; insert into t values (7, 7)")
    postgres.sql("set session_replication_role = replica; update t set v = 5 where id = 2")
    postgres.sql("alter table t disable trigger all; alter table t enable trigger all")
    postgres.follow_and_check("select pgque.send('changes', 'other', 'wakes the consumer')")
    assert len(postgres.copied) == 2
    assert postgres.there("select xmin from t where id = 1") == written
    assert postgres.there("select * from sums") == [(6,)], "what depends on the replica stays"


def test_an_event_that_cannot_be_staged_stops_its_table_alone(
    postgres: PostgresReplication,
) -> None:
    postgres.sql("create table a (id int primary key); create table b (id int primary key, v text)")
    masked = TableSpec("public.b", mask={"v": "sha256"})
    postgres.capture("public.a", masked)
    postgres.catch_up()
    # Of a role with pgque_writer. The source itself reads the JSON, to mask it.
    event = "select pgque.insert_event('changes', 'insert', 'no JSON', {}, null, null, null)"
    found = postgres.why_apart("insert into a values (1);" + event.format("'public.b'"))
    assert "invalid input syntax for type json" in found
    postgres.check("public.a")
    postgres.repair("public.b")
    postgres.follow("insert into a values (2); insert into b values (2, 'x')")
    postgres.check("public.a")
    assert postgres.verify(masked).is_equal

    postgres.sql("create table c (id int primary key); select pgque.capture('c', 'changes')")
    postgres.sql("insert into c values (1);" + event.format("'public.b'"))
    postgres.copied.clear()
    postgres.catch_up()
    assert any("changes of public.c are skipped" in text for text in postgres.copied)


@pytest.mark.parametrize("dies", [True, False])
@pytest.mark.parametrize("point", ["after record", "before ack"])
def test_an_attempt_that_dies_or_is_overtaken_loses_and_repeats_nothing(
    postgres: PostgresReplication, monkeypatch: pytest.MonkeyPatch, point: str, dies: bool
) -> None:
    """Neither changes of one table nor the copy of another one."""
    postgres.begin("create table t (id int primary key, v int); insert into t values (1, 1)")
    postgres.sql("update t set v = 2; insert into t values (2, 2)")
    postgres.sql("create table u as table t; alter table u add primary key (id)")
    postgres.capture("public.u")
    postgres.tick()
    written, rows = [], "select xmin, ctid, * from t union all select xmin, ctid, * from u"

    def others_go_on() -> None:
        postgres.end_leases()
        postgres.run()
        postgres.follow("insert into t values (3, 3); insert into u values (3, 3)")
        written.extend(postgres.there(rows))

    Faults(postgres, monkeypatch).set(point, 0, die if dies else others_go_on)
    with pytest.raises((Killed, PgqueError)):
        postgres.run()
    if dies:
        others_go_on()
    assert postgres.there(rows) == written
    postgres.check()
    assert postgres.verify().is_equal


def test_readers_see_all_tables_at_one_batch_and_never_half_a_copy(
    postgres: PostgresReplication,
) -> None:
    postgres.begin(
        "create table t (id int primary key, v int); create table u (id int primary key, v int);"
        "insert into t select n, 10 from generate_series(1, 1000) n; insert into u select * from t",
        "public.t",
        "public.u",
    )
    done = Event()
    query = "select (select sum(v) from t) + (select sum(v) from u), (select count(*) from t)"
    seen = set()

    def read() -> None:
        while not done.is_set():
            seen.update(postgres.there(query))

    with psycopg.connect(str(postgres.target.url)) as old, ThreadPoolExecutor(1) as pool:
        old.execute("set transaction isolation level repeatable read")
        before = old.execute("select * from t order by id").fetchall()
        reader = pool.submit(read)
        try:
            for number in range(1, 6):
                postgres.follow(
                    f"begin; update t set v = v - 1 where id <= {number * 100};"
                    f"update u set v = v + 1 where id <= {number * 100}; commit"
                )
            postgres.sql("alter table t disable trigger all; alter table t enable trigger all")
            postgres.sql("truncate t; insert into t select n, 10 from generate_series(1, 1000) n")
            postgres.follow("truncate u; insert into u select * from t")
        finally:
            done.set()
        reader.result()
        assert old.execute("select * from t order by id").fetchall() == before
    assert seen == {(20000, 1000)}
    postgres.check()


def test_replicas_may_be_in_another_schema_of_the_same_database(
    postgres: PostgresReplication,
) -> None:
    postgres.target = PostgresReplicas(schema="copies")
    postgres.begin("create table t (id int primary key); insert into t values (1)")
    postgres.follow_and_check("insert into t values (2)")
    assert postgres.verify().is_equal


def refused(postgres: PostgresReplication, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        postgres.catch_up()


def test_a_table_of_somebody_else_is_refused_and_stays(postgres: PostgresReplication) -> None:
    postgres.sql("create table t (id int primary key); insert into t values (1)")
    postgres.capture("public.t")
    postgres.there("create table t (id int primary key); insert into t values (5)")
    refused(postgres, "is another table")
    postgres.there("comment on table t is 'people read this'")
    refused(postgres, "is another table")
    assert postgres.there("select * from t") == [(5,)]


def test_a_table_is_not_its_own_replica(postgres: PostgresReplication) -> None:
    with pytest.raises(InvalidArgument, match="its own replica"):
        PostgresReplicas()
    postgres.sql("create table t (id int primary key); insert into t values (1)")
    postgres.capture("public.t")
    postgres.target = PostgresReplicas(postgres.url)
    refused(postgres, "the source itself")
    postgres.target = PostgresReplicas(schema="public")
    refused(postgres, "the source itself")


def test_two_tables_do_not_share_a_replica(postgres: PostgresReplication) -> None:
    postgres.sql(
        "create table t (id int primary key); create schema s;create table s.t (id int primary key)"
    )
    postgres.capture("public.t", "s.t")
    postgres.target = replace(postgres.target, schema="copies")
    refused(postgres, "one replica")


def test_two_replicas_do_not_share_a_table(postgres: PostgresReplication) -> None:
    postgres.sql("create schema s; create table t (id int primary key)")
    postgres.sql("create table s.t (id int primary key)")
    postgres.target = replace(postgres.target, schema="copies")
    postgres.capture("public.t")
    postgres.catch_up()
    postgres.tables = []
    postgres.capture("s.t")
    postgres.sql("select pgque.uncapture('t', 'changes')")
    refused(postgres, r"replica of changes/lake/public\.t")


def test_a_password_is_shown_by_no_error(postgres: PostgresReplication) -> None:
    postgres.sql("create table t (id int primary key)")
    postgres.capture("public.t")
    postgres.tick()
    postgres.target = PostgresReplicas("postgresql://nobody:secret@localhost:1/x")
    with pytest.raises(PgqueError) as failed:
        postgres.run()
    assert "secret" not in str(failed.value)


def test_events_of_a_table_that_had_the_name_before_reach_no_replica(
    postgres: PostgresReplication,
) -> None:
    postgres.begin("create table t (id int primary key); insert into t values (1)")
    postgres.sql("alter table t rename to old; create table t (id int primary key)")
    postgres.follow("insert into t values (7)")
    with pytest.raises(InvalidArgument, match=r"uncapture\('public.old', 'changes'\)"):
        postgres.follow("insert into old values (3); insert into t values (8)")

    postgres.follow_and_check("select pgque.uncapture('old', 'changes')")
    assert postgres.replica("public.t") == [{"id": 7}, {"id": 8}]
