"""Values that a column of PostgreSQL takes as they are, and rows that it refuses as a whole."""

import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession, types
from pyspark.sql.pandas.types import to_arrow_schema

from pgque_dagster.client import InvalidArgument, MalformedPayload, PgqueError
from tests.conftest import Server
from tests.support.spark.in_process import Rows, without_tasks
from tests.support.spark.typed_tables import UNWORKABLE, execute, read, stages, store, stored, write

UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
TEXTS = {
    "json": ('{"a": 1e5,  "a":2}', '"\\u0000"'),
    "uuid": (UUID, UUID.upper()),
    "mood": ("calm", "Über"),
    "inet": ("10.0.0.1", "10.0.0.0/8"),
    "int4[]": ("{1,NULL}", "{}"),
    "varchar(3)": ("", "a  "),
    "char(3)": ("abc", "a  "),
    "short": ("abc", "abc"),
    "shorter": ("yes", "yes"),
    "jsonb": ('{"b": 1.10, "a": [null, 1e400]}', "1"),
}


def test_texts_that_a_type_takes_are_kept(url: str, spark: SparkSession) -> None:
    store(url, spark, [("string", texts, kind) for kind, texts in TEXTS.items()])

    *found, jsonb = stored(url, "format('%s', {})", len(TEXTS))
    *expected, _ = TEXTS.values()
    expected[1] = (UUID, UUID)
    assert found == list(map(list, expected))
    of_value = 'select {} = \'{{"a": [null, 1e400], "b": 1.1}}\'::jsonb from stored'
    assert read(url, of_value.format(f"c{len(found)}"))[0] == (True,), jsonb


CHANGED = [
    ("int", 32768, "int2"),
    ("bigint", -(2**31) - 1, "int4"),
    ("int", 100, "numeric(2)"),
    ("bigint", 10**8, "numeric(10,2)"),
    ("decimal(10,3)", Decimal("0.005"), "numeric(10,2)"),
    ("decimal(10,2)", Decimal("100.00"), "numeric(4,2)"),
    ("decimal(10,2)", Decimal("0.01"), "numeric(4)"),
    *(
        ("string", text, kind)
        for text, kind in (
            ("abcd", "varchar(3)"), ("abc ", "varchar(3)"), ("ab", "char(3)"), ("", "char(3)"),
            ("no!!", "shorter"), ("x", "uuid"), ("{" + UUID + "}", "uuid"), ("Calm", "mood"),
            ("{'a': 1}", "json"), ('{"a": 1} x', "jsonb"), ('"\\u0000"', "jsonb"),
            ("10.0.0.1/32", "inet"), ("{ 1 }", "int4[]"), ("1011", "bit(3)"), ("x" * 64, "name"),
        )
    ),
    ("timestamp", datetime(2026, 1, 2, 3, 4, 5, 1, UTC), "timestamptz(3)"),
    ("timestamp_ntz", datetime(2026, 1, 2, 3, 4, 5, 500000), "timestamp(0)"),
    ("interval day to second", timedelta(hours=1, seconds=1), "interval hour"),
    ("interval day to second", timedelta(microseconds=1), "interval(3)"),
]  # fmt: skip


def test_a_value_that_the_column_would_change_is_refused_and_nothing_stored(url: str) -> None:
    for spark_type, value, kind in CHANGED:
        execute(url, "drop table if exists stored", f"create table stored (c0 {kind})")
        schema = types.StructType.fromDDL(f"c0 {spark_type}")
        arrow = to_arrow_schema(schema, timezone="UTC")
        rows = pa.Table.from_pylist([{"c0": None}, {"c0": value}], arrow)
        refusal = pytest.raises(InvalidArgument, match=r'column c0 of "public"\."stored", ')
        with refusal, without_tasks():
            write(url, "stored", Rows(rows, schema))
            pytest.fail(f"{value} is stored in {kind}")
        assert read(url, "select * from stored") == []
    assert stages(url) == []


BALANCE = "create table t (account text unique, amount numeric(10,2))"
ADD: dict[str, Any] = {"key": ["account"], "mode": "add"}
UPSERT = {**ADD, "mode": "upsert"}
APPEND: dict[str, Any] = {}
NULL_KEY = "values ('x', 5), (null, 5) as t(account, amount)"
OUTSIDE = r"column at holds a .* outside the years 1 to 9999"
GENERATED = (
    "create table t (account text primary key, amount bigint not null,"
    " twice bigint generated always as (amount * 2) stored,"
    " nr int generated always as identity, made text default 'by default')"
)

# A table, what is there, what is given, the sink's options, and the error.
REFUSED = [
    *(
        (f"create table t (account {kind} unique, amount numeric)", "",
         f"select account, amount from {NULL_KEY}", mode, "column account .* has a null.*NOT NULL")
        for mode in (ADD, UPSERT) for kind in ("text", "varchar(9)")
    ),
    (BALANCE, "'x', 0.01", "select 'x' as account, cast(0.004 as decimal(5,3)) as amount from"
     " range(999)", ADD, r"numeric\(10,2\), does not hold 3\.996"),
    *(
        (f"create table t (account text primary key, amount {kind})", f"'x', {there}",
         f"select 'x' as account, cast(n as {cast}) as amount from values {given} as t(n)", ADD,
         "out of range|overflow")
        for kind, there, given, cast in (
            ("smallint", 32000, "700, 100", "smallint"), ("int", 0, f"{2**31 - 1}, 1", "int"),
            ("bigint", 0, f"{2**63 - 1}, 1", "bigint"), ("numeric(4,2)", 99, "1", "decimal(4,2)"),
        )
    ),
    *(
        (f"create table t (amount numeric(10,2), account {kind} unique)", "",
         f"select cast(1 as decimal(5,3)) as amount, cast({given} as string) as account", ADD,
         'column account of "public"')
        for kind, given in (("uuid", "'no uuid'"), ("varchar(3)", "'abcd'"), ("uuid", "null"))
    ),
    ("create table t (first text, second text)", "",
     "select 'a' as first, 'b' as second union all select 'a', 'b\\0'", APPEND,
     r"column second holds .* U\+0000"),
    *(
        (f"create table t (at {kind})", "", f"select {value} as at", APPEND, OUTSIDE)
        for kind, value in (
            ("date", "date_add(date'0001-01-01', -1)"), ("date", "date_add(date'9999-12-31', 1)"),
            ("timestamptz", "timestamp_seconds(-62135596801)"),
            ("timestamptz", "timestamp_seconds(253402300800)"),
            ("timestamp", "timestamp_ntz'9999-12-31 23:59:59' + interval '1' second"),
        )
    ),
    *(
        (GENERATED, "'x', 5", f"select 'y' as account, 1L as amount, 2 as {name} {UNWORKABLE}",
         APPEND, f'into column "{name}"|column "{name}"')
        for name in ("twice", "nr")
    ),
    *(
        ("create table other (id int primary key); create table t (a int " + constraint + ")", "",
         "select 6 as a union all select 1 union all select null", APPEND, "violates")
        for constraint in ("not null", "check (a > 5)", "references other")
    ),
]  # fmt: skip


def test_rows_that_the_table_does_not_hold_are_refused_as_a_whole(
    url: str, spark: SparkSession
) -> None:
    for table, there, given, options, told in REFUSED:
        execute(url, "drop table if exists t, other", table)
        if there:
            execute(url, f"insert into t values ({there})")
        before = read(url, "select * from t")

        refusal = pytest.raises((InvalidArgument, MalformedPayload), match=told)
        with refusal, without_tasks():
            write(url, "t", spark.sql(given), **options)

        assert read(url, "select * from t") == before, given
    assert stages(url) == []


# A table, what is given, the sink's options, and what is there after it was given twice.
KEPT = [
    # Rows are added up before they are held against the scale, by what is equal in the column.
    (BALANCE, "select 'x' as account, cast(0.004 as decimal(5,3)) as amount from range(1000)", ADD,
     [("x", Decimal("8.00"))]),
    ("create table t (account uuid primary key, amount numeric(10,2))",
     f"select '{UUID}' as account, cast(0.004 as decimal(5,3)) as amount"
     f" union all select '{UUID.upper()}', 0.006", ADD, [(uuid.UUID(UUID), Decimal("0.02"))]),
    # Floats are added up as doubles.
    ("create table t (account text primary key, amount real)",
     "select 'x' as account, cast(if(id = 0, 16777216, 1) as float) as amount from range(101)",
     {**ADD, "once": True}, [("x", 2.0**24 + 100)]),
    # A column may have the name of the stage's own.
    ("create table t (st_txid bigint primary key, st_txid_ int)",
     "select 1L as st_txid, 2 as st_txid_", {"mode": "add", "key": ["st_txid"]}, [(1, 4)]),
    # Columns that no row has get their default.
    ("create table t (a int, b text not null default 'new', c int,"
     " d int generated by default as identity)",
     "select 1 as a, 7 as d", APPEND, [(1, "new", None, 7)] * 2),
    # Generated columns follow what is merged.
    *(
        (GENERATED, "select 'x' as account, 3L as amount", mode,
         [("x", amount, 2 * amount, 1, "by default")])
        for mode, amount in ((ADD, 6), (UPSERT, 3))
    ),
    # A null in the key is one key where nulls are not distinct, which PostgreSQL 14 does not know.
]  # fmt: skip


def test_rows_that_the_table_holds_are_kept_exactly(url: str, spark: SparkSession) -> None:
    for table, given, options, expected in KEPT:
        execute(url, "drop table if exists t", table)
        times = 1 if options.get("once") else 2
        for _ in range(times):
            with without_tasks():
                given_options = {n: x for n, x in options.items() if n != "once"}
                write(url, "t", spark.sql(given), **given_options)

        assert read(url, "select * from t") == expected


def test_percent_signs_and_quotes_may_be_in_names(url: str, spark: SparkSession) -> None:
    schema, table = '"100%s"', '"100%s"."a %(b)s %% ""c"" {d}"'
    execute(
        url,
        f"drop schema if exists {schema} cascade",
        f"create schema {schema}",
        f'create table {table} ("k %s" text primary key, "v % {{}}" int)',
    )
    frame = spark.createDataFrame([("x", 1), ("x", 2)], "`k %s` string, `v % {}` int")

    write(url, table, frame, mode="add", key=["k %s"], name="100%")
    write(url, table, frame.limit(1), mode="upsert", key=["k %s"], stage_schema="100%s")

    assert len(read(url, f"select * from {table}")) == 1


def test_texts_reach_a_database_of_another_encoding(server: Server, spark: SparkSession) -> None:
    execute(
        server.url,
        "drop database if exists latin",
        "create database latin template template0 encoding 'LATIN1' locale 'C'",
    )
    url = server.database_url("latin")
    execute(url, "create table notes (a text)")

    write(url, "notes", spark.createDataFrame([("Über",)], "a string"))
    with pytest.raises((PgqueError, psycopg.Error)):
        write(url, "notes", spark.createDataFrame([("€",)], "a string"))

    assert read(url, "select a, length(a) from notes") == [("Über", 4)]
    execute(server.url, "drop database latin with (force)")
