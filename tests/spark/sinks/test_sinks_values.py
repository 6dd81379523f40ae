"""Keys, sums, names and texts: what a sink stores is what it was given, or it stores nothing."""

import itertools
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster.client import InvalidArgument, MalformedPayload, PgqueError
from pgque_dagster.spark.sinks import PostgresSink
from tests.conftest import Server, server_version
from tests.support.databases import empty_database
from tests.support.queues import connect, rows

_numbers = itertools.count()
BALANCE = "create table balance (account text unique, amount numeric(10,2))"
BY_ACCOUNT: dict[str, Any] = {"key": ["account"]}
ADD: dict[str, Any] = {"key": ["account"], "mode": "add"}


@pytest.fixture(scope="module")
def database(server: Server) -> Iterator[str]:
    with empty_database(server) as made:
        yield made


@pytest.fixture
def url(database: str) -> str:
    """A database with nothing in it, the same one for each test."""
    with connect(database) as db:
        db.execute("drop schema public cascade; create schema public")
    return database


def execute(url: str, *statements: str) -> None:
    with connect(url) as db:
        for statement in statements:
            db.execute(statement.encode())


def read(url: str, query: str) -> list[tuple[Any, ...]]:
    with connect(url) as db:
        return rows(db, query)


def write(url: str, table: str, frame: DataFrame, **options: Any) -> None:
    PostgresSink(table, url=url, **options).foreach_batch(query="q")(frame, next(_numbers))


def unworkable(spark: SparkSession, columns: str) -> DataFrame:
    """Fails if Spark computes it."""
    return spark.sql(f"select {columns}").where("raise_error('Spark worked') is null")


@pytest.mark.parametrize("mode", ["upsert", "add"])
@pytest.mark.parametrize("account", ["account text unique", "account varchar(9) unique"])
def test_a_null_in_the_key_is_refused_and_nothing_stored(
    url: str, spark: SparkSession, mode: Any, account: str
) -> None:
    execute(url, f"create table balance ({account}, amount numeric)")
    frame = spark.createDataFrame([("x", 5), (None, 5)], "account string, amount int")

    with pytest.raises(InvalidArgument, match=r"column account .* has a null") as refused:
        write(url, "balance", frame, mode=mode, **BY_ACCOUNT)

    assert "NOT NULL" in str(refused.value)
    assert "NULLS NOT DISTINCT" in str(refused.value)
    assert read(url, "select * from balance") == []
    assert read(url, "select relname from pg_class where relname ~ '^pgque_stage'") == []


@pytest.mark.skipif(server_version() < 15, reason="PostgreSQL 14 has no NULLS NOT DISTINCT")
@pytest.mark.parametrize(("mode", "amount"), [("upsert", 5), ("add", 10)])
def test_a_null_in_the_key_is_one_key_where_nulls_are_not_distinct(
    url: str, spark: SparkSession, mode: Any, amount: int
) -> None:
    execute(
        url,
        "create table balance (account text, day date, amount int)",
        "create unique index on balance (day, account) include (amount) nulls not distinct",
    )
    frame = spark.sql("select cast(null as string) account, date'2026-01-02' as day, 5 as amount")

    for _ in range(2):
        write(url, "balance", frame, mode=mode, key=["account", "day"])

    assert read(url, "select account, amount from balance") == [(None, amount)]


def test_an_index_of_other_columns_does_not_let_nulls_in(url: str, spark: SparkSession) -> None:
    other = "nulls not distinct" if server_version() >= 15 else ""
    execute(url, BALANCE, f"create unique index on balance (account, amount) {other}")
    frame = spark.sql("select cast(null as string) account, cast(5 as decimal(10,2)) amount")

    with pytest.raises(InvalidArgument, match="has a null"):
        write(url, "balance", frame, **ADD)


def test_rows_are_added_up_before_they_are_held_against_the_scale(
    url: str, spark: SparkSession
) -> None:
    execute(url, BALANCE, "insert into balance values ('x', 0.01)")
    frame = spark.range(1000).selectExpr("'x' as account", "cast(0.004 as decimal(5,3)) as amount")

    write(url, "balance", frame, **ADD)

    assert read(url, "select amount from balance") == [(Decimal("4.01"),)]


def test_a_sum_that_does_not_fit_the_scale_is_refused(url: str, spark: SparkSession) -> None:
    execute(url, BALANCE, "insert into balance values ('x', 0.01)")
    frame = spark.range(999).selectExpr("'x' as account", "cast(0.004 as decimal(5,3)) as amount")

    with pytest.raises(InvalidArgument, match=r"numeric\(10,2\), does not hold 3\.996"):
        write(url, "balance", frame, **ADD)

    assert read(url, "select amount from balance") == [(Decimal("0.01"),)]


@pytest.mark.parametrize(
    ("kind", "there", "given", "cast"),
    [
        ("smallint", 32000, [700, 100], "smallint"),
        ("int", 0, [2**31 - 1, 1], "int"),
        ("bigint", 0, [2**63 - 1, 1], "bigint"),
        ("numeric(4,2)", 99, [1], "decimal(4,2)"),
    ],
)
def test_a_sum_out_of_range_is_refused(
    url: str, spark: SparkSession, kind: str, there: int, given: list[int], cast: str
) -> None:
    execute(url, f"create table balance (account text primary key, amount {kind})")
    execute(url, f"insert into balance values ('x', {there})")
    frame = spark.createDataFrame([("x", each) for each in given], "account string, n bigint")

    with pytest.raises(InvalidArgument, match=r"out of range|overflow"):
        write(url, "balance", frame.selectExpr("account", f"cast(n as {cast}) as amount"), **ADD)

    assert read(url, "select amount from balance") == [(there,)]


def test_floats_are_added_up_as_doubles(url: str, spark: SparkSession) -> None:
    execute(url, "create table balance (account text primary key, amount real)")
    frame = spark.createDataFrame(
        [("x", 2.0**24), *[("x", 1.0)] * 100], "account string, amount float"
    )

    write(url, "balance", frame, **ADD)

    assert read(url, "select amount::float8 from balance") == [(2.0**24 + 100,)]


def test_percent_signs_and_quotes_may_be_in_names(url: str, spark: SparkSession) -> None:
    schema, table = '"100%s"', '"100%s"."a %(b)s %% ""c"" {d}"'
    execute(
        url,
        f"create schema {schema}",
        f'create table {table} ("k %s" text primary key, "v % {{}}" int)',
    )
    frame = spark.createDataFrame([("x", 1), ("x", 2)], "`k %s` string, `v % {}` int")

    write(url, table, frame, mode="add", key=["k %s"], name="100%")
    write(url, table, frame.limit(1), mode="upsert", key=["k %s"], stage_schema="100%s")

    assert len(read(url, f"select * from {table}")) == 1


def test_a_column_may_have_the_name_of_the_stages_own(url: str, spark: SparkSession) -> None:
    execute(url, "create table notes (st_txid bigint primary key, st_txid_ int)")

    frame = spark.createDataFrame([(1, 2)], "st_txid bigint, st_txid_ int")
    write(url, "notes", frame, mode="add", key=["st_txid"])

    assert read(url, "select * from notes") == [(1, 2)]


def test_rows_are_added_up_by_what_the_column_takes_for_equal(
    url: str, spark: SparkSession
) -> None:
    """Two spellings are one key; what is held against the scale is the sum of both."""
    execute(url, "create table balance (account uuid primary key, amount numeric(10,2))")
    account = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    frame = spark.createDataFrame(
        [(account, Decimal("0.004")), (account.upper(), Decimal("0.006"))],
        "account string, amount decimal(5,3)",
    )

    write(url, "balance", frame, **ADD)

    assert read(url, "select account::text, amount from balance") == [(account, Decimal("0.01"))]


@pytest.mark.parametrize(
    ("kind", "given"), [("uuid", "no uuid"), ("varchar(3)", "abcd"), ("uuid", None)]
)
def test_a_key_that_the_column_does_not_hold_is_named_where_rows_are_added(
    url: str, spark: SparkSession, kind: str, given: str | None
) -> None:
    execute(url, f"create table balance (amount numeric(10,2), account {kind} unique)")
    frame = spark.createDataFrame([(Decimal(1), given)], "amount decimal(5,3), account string")

    with pytest.raises(InvalidArgument, match='column account of "public"'):
        write(url, "balance", frame, **ADD)

    assert read(url, "select * from balance") == []


def test_a_text_with_a_nul_is_refused_by_its_column(url: str, spark: SparkSession) -> None:
    execute(url, "create table notes (first text, second text)")
    frame = spark.createDataFrame([("a", "b"), ("a", "b\0")], "first string, second string")

    with pytest.raises(MalformedPayload, match=r"column second holds .* U\+0000"):
        write(url, "notes", frame)

    assert read(url, "select * from notes") == []


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("date", "date_add(date'0001-01-01', -1)"),
        ("date", "date_add(date'9999-12-31', 1)"),
        ("timestamptz", "timestamp_seconds(-62135596801)"),
        ("timestamptz", "timestamp_seconds(253402300800)"),
        ("timestamp", "timestamp_ntz'9999-12-31 23:59:59' + interval '1' second"),
    ],
)
def test_a_time_that_has_no_date_in_python_is_refused(
    url: str, spark: SparkSession, kind: str, value: str
) -> None:
    execute(url, f"create table notes (at {kind})")

    with pytest.raises(InvalidArgument, match=r"column at holds a .* outside the years 1 to 9999"):
        write(url, "notes", spark.sql(f"select {value} as at"))

    assert read(url, "select * from notes") == []


@pytest.mark.parametrize(
    "column",
    ["int generated always as (1) stored", "int generated always as identity"],
)
def test_a_generated_column_takes_no_value(url: str, spark: SparkSession, column: str) -> None:
    execute(url, f"create table notes (a int, b {column})")

    with pytest.raises(InvalidArgument, match=r'into column "b"'):
        write(url, "notes", unworkable(spark, "1 as a, 2 as b"))
    write(url, "notes", spark.sql("select 1 as a"))

    assert read(url, "select * from notes") == [(1, 1)]


def test_columns_that_no_row_has_get_their_default(url: str, spark: SparkSession) -> None:
    execute(
        url,
        "create table notes (a int, b text not null default 'new', c int,"
        " d int generated by default as identity)",
    )

    write(url, "notes", spark.sql("select 1 as a, 7 as d union all select 2, 8"))

    assert read(url, "select * from notes order by a") == [(1, "new", None, 7), (2, "new", None, 8)]


@pytest.mark.parametrize("constraint", ["not null", "check (a > 5)", "references other"])
def test_rows_that_break_a_constraint_are_refused_as_a_whole(
    url: str, spark: SparkSession, constraint: str
) -> None:
    execute(
        url, "create table other (id int primary key)", f"create table notes (a int {constraint})"
    )

    with pytest.raises(InvalidArgument, match="violates"):
        write(url, "notes", spark.sql("select 6 as a union all select 1 union all select null"))

    assert read(url, "select * from notes") == []


def test_a_time_in_another_sense_says_how_to_cast(url: str, spark: SparkSession) -> None:
    execute(url, "create table notes (at timestamp)")

    with pytest.raises(InvalidArgument) as refused:
        write(url, "notes", unworkable(spark, "current_timestamp() as at"))

    assert str(refused.value) == (
        'column at of "public"."notes" is timestamp without time zone, which takes no timestamp. '
        "It takes timestamp_ntz. Cast at in Spark, or change the table's column."
    )


def test_texts_reach_a_database_of_another_encoding(server: Server, spark: SparkSession) -> None:
    with connect(server.url) as db:
        db.execute("drop database if exists latin")
        db.execute("create database latin template template0 encoding 'LATIN1' locale 'C'")
    url = server.database_url("latin")
    execute(url, "create table notes (a text)")

    write(url, "notes", spark.createDataFrame([("Über",)], "a string"))
    with pytest.raises((PgqueError, psycopg.Error)):
        write(url, "notes", spark.createDataFrame([("€",)], "a string"))

    assert read(url, "select a, length(a) from notes") == [("Über", 4)]
    with connect(server.url) as db:
        db.execute("drop database latin with (force)")
