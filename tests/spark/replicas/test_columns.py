"""Replicas without some columns, or with hashes in them."""

import psycopg
import pytest

from pgque_dagster.client import Client
from pgque_dagster.client.errors import InvalidArgument
from pgque_dagster.client.replicas.source import SourceTable
from pgque_dagster.client.replicas.spec import TableSpec
from tests.support.replicas.replication import (
    LakeReplication,
    PostgresReplication,
    Replication,
    rows_of,
)

TABLE = (
    "create table t (id int primary key, email text, notes text, born date, amount numeric(9,2),"
    " big bigint, at timestamptz, f float8)"
)
MASKED = ("email", "born", "amount", "big", "at")
SPEC = TableSpec("public.t", ["notes"], dict.fromkeys(MASKED, "sha256"))
# A time is hashed as JSON has it.
TEXTS = {"at": """to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS+00:00')"""}
HASHES = (
    f"encode(sha256(convert_to({TEXTS.get(x, x + '::text')}, 'UTF8')), 'hex') as {x}"
    for x in MASKED
)
EXPECTED = f"(select id, f, {', '.join(HASHES)} from t) t"


def test_columns_are_left_out_or_masked_in_copies_and_changes(replication: Replication) -> None:
    replication.begin(
        f"{TABLE}; insert into t values (1, 'a@b', 'secret', '2000-01-01', 1.50, 10000000000,"
        " '2026-01-01 12:00+00', 0.1), (2, null, null, null, null, null, null, null)",
        SPEC,
    )
    assert replication.replica("public.t") == rows_of(replication.url, EXPECTED)
    replication.sql(
        "update t set email = 'c@d', f = 0.3 where id = 2; delete from t where id = 1;"
        "insert into t values (3, 'täb\\t', 'x', '0044-03-15 BC', -0.01, -1,"
        " '2026-01-02 03:04:05+00', -0.0)"
    )
    assert replication.verify(SPEC).is_equal
    replication.catch_up()
    assert replication.replica("public.t") == rows_of(replication.url, EXPECTED)
    assert replication.verify(SPEC).is_equal
    assert len(replication.copied) == 1
    replication.sql("set session_replication_role = replica; update t set big = 7 where id = 2")
    assert replication.verify(SPEC).differences == 1


@pytest.mark.parametrize("replication", ["iceberg", "postgres"], indirect=True)
def test_other_columns_have_the_table_copied_again(replication: Replication) -> None:
    replication.begin(f"{TABLE}; insert into t (id, email, notes) values (1, 'a', 'x')", SPEC)
    for spec in (TableSpec("public.t", ["email"]), "public.t"):
        replication.tables = [spec]
        assert "left out, masked or text" in (replication.verify(spec).why_not or "")
        replication.follow("insert into t (id) select max(id) + 1 from t")
        assert replication.verify(spec).is_equal
    replication.check()
    assert len(replication.copied) == 3


def test_what_cannot_be_left_out_or_masked_is_refused(queue_url: str) -> None:
    with psycopg.connect(queue_url, autocommit=True) as db:
        db.execute(TABLE)
    refused = (
        (TableSpec("t", ["id"]), "part of the key"),
        (TableSpec("t", mask={"id": "sha256"}), "part of the key"),
        (TableSpec("t", ["missing"]), "no column missing"),
        (TableSpec("t", mask={"missing": "sha256"}), "no column missing"),
        (TableSpec("t", mask={"email": "md5"}), "no mask 'md5'"),
        (TableSpec("t", ["email"], {"email": "sha256"}), "twice"),
        (TableSpec("t", "email"), "not a list"),
        (TableSpec("t", mask={"f": "sha256"}), "cannot be masked"),
        (TableSpec("t", unstorable={"missing": "text"}), "no column missing"),
        (TableSpec("t", unstorable={"born": "null"}), "The only choice is text"),
        (TableSpec("t", unstorable={"f": "text"}), "the lake holds each value"),
        (TableSpec("t", mask={"born": "sha256"}, unstorable={"born": "text"}), "twice"),
        (TableSpec("t", arrays="lists"), "arrays as 'lists'"),
    )
    with Client(queue_url) as client:
        for spec, words in refused:
            with pytest.raises(InvalidArgument, match=words):
                SourceTable.find(client, spec)


ARRAYS = (
    "create domain ints as int[]; create table a (id int primary key, i smallint[], t text[],"
    " at timestamptz[], n numeric(5,2)[], f float8[], b bool[], u uuid[], d ints, plain int);"
)
LISTS = TableSpec("public.a", arrays="list")


def test_arrays_are_lists_on_request_in_copies_and_changes(lake: LakeReplication) -> None:
    values = (
        """'{1,null}', '{"a,b","NULL",null,"x\\"y",""}', '{2026-01-02 03:04:05.6+01}',"""
        """ '{1.5,null}',"""
        " '{0.1,-0,null}', '{t,null,f}', '{5e0b40d3-0000-4000-8000-00000000000f}', '{7}', 1"
    )
    lake.begin(
        f"{ARRAYS} insert into a values (1, {values}); insert into a (id, i) values (2, '{{}}')",
        LISTS,
    )
    lake.sql(f"insert into a values (4, {values}); delete from a where id = 2")
    lake.catch_up()
    assert lake.replica("public.a") == rows_of(
        lake.url, "(select id, i, t, at, n, f, b, u::text[] as u, d::int[] as d, plain from a) a"
    )
    lake.sql("set session_replication_role = replica; update a set i = '{null,1}' where id = 4")
    assert lake.verify(LISTS).differences == 1
    lake.repair("public.a")
    lake.catch_up()
    assert {row["id"]: row["i"] for row in lake.replica("public.a")} == {1: [1, None], 4: [None, 1]}
    assert len(lake.copied) == 2


@pytest.mark.parametrize("lake", ["delta"], indirect=True)
@pytest.mark.parametrize(
    "text", ["{{1,2},{3,4}}", pytest.param("[0:1]={1,2}", marks=pytest.mark.slow)]
)
def test_an_array_that_is_no_list_stops_the_batch_and_loses_nothing(
    lake: LakeReplication, text: str
) -> None:
    lake.begin(ARRAYS, LISTS)
    reason = lake.why_apart(f"insert into a (id, i) values (1, '{text}')")
    assert "row of public.a with id 1 " in reason
    assert "has an array with several" in reason
    lake.tables = ["public.a"]
    lake.end_pauses()
    lake.catch_up()
    assert [(row["id"], row["i"]) for row in lake.replica("public.a")] == [(1, text)]


@pytest.mark.parametrize("lake", ["delta"], indirect=True)
def test_kept_texts_do_not_become_lists(lake: LakeReplication) -> None:
    lake.keep("soft")
    lake.begin(f"{ARRAYS} insert into a (id, i) values (1, '{{1}}')", "public.a")
    lake.tables = [LISTS]
    lake.sql("insert into a (id) values (2)")
    with pytest.raises(InvalidArgument, match="move the replica away"):
        lake.catch_up()


def test_postgresql_holds_each_value_and_refuses_a_choice(postgres: PostgresReplication) -> None:
    postgres.sql("create table t (id int primary key, d date)")
    postgres.capture(TableSpec("public.t", unstorable={"d": "text"}))
    with pytest.raises(InvalidArgument, match="Leave unstorable out"):
        postgres.catch_up()


def test_arrays_in_postgresql_stay_arrays(postgres: PostgresReplication) -> None:
    postgres.begin(f"{ARRAYS} insert into a (id, i) values (1, '{{{{1,2}},{{3,4}}}}')", LISTS)
    assert postgres.replica("public.a") == postgres.source("public.a")


ODD = (
    "create table o (day date primary key, at timestamptz, n numeric(9,2), l date[], big bigint);"
    "insert into o values ('2026-01-01', '2026-01-01 12:00+00', 1.50, '{2026-01-02}', 7)"
)
AS_TEXT = TableSpec(
    "public.o", arrays="list", unstorable=dict.fromkeys(("day", "at", "n", "l", "big"), "text")
)
FAR = "values ('{}', '-infinity', 'NaN', '[0:1]={{infinity,10000-01-01}}', -1)"


@pytest.mark.slow
def test_values_that_the_lake_cannot_hold_are_text_on_request(lake: LakeReplication) -> None:
    lake.begin(ODD, TableSpec("public.o", arrays="list"))
    assert "unstorable: {" in lake.why_apart(f"insert into o {FAR.format('infinity')}")
    lake.tables = [AS_TEXT]
    lake.end_pauses()
    lake.catch_up()
    lake.sql(
        f"insert into o {FAR.format('10000-01-01')}; delete from o where day = 'infinity';"
        f"insert into o {FAR.format('0044-03-15 BC')}; update o set n = 'NaN' where big = 7"
    )
    assert lake.verify(AS_TEXT).is_equal
    lake.catch_up()
    texts = "day::text, n::text, l::text, big::text, "
    at = "to_json(at)#>>'{}'"
    with lake.connect() as db:
        db.execute("set timezone = 'UTC'")
        rows = db.execute(f"select {texts} {at} from o".encode()).fetchall()
    found = [
        tuple(row[x] for x in ("day", "n", "l", "big", "at")) for row in lake.replica("public.o")
    ]
    assert sorted(found) == sorted(rows)
    assert lake.verify(AS_TEXT).is_equal
    lake.sql("set session_replication_role = replica; update o set n = 1.50 where big = 7")
    assert lake.verify(AS_TEXT).differences == 1
