"""What a Postgres sink stores is what it was given, or it stores nothing.

Every pair of a Spark and a Postgres type is equal, or refused before Spark works.

The oracle is Python: what psycopg reads from the table are the values that Spark was given. Spark
and the database work in two time zones, neither of them UTC.
"""

import itertools
import math
import struct
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import zip_longest
from typing import Any, NamedTuple

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession, types

from pgque_dagster.client import InvalidArgument, MalformedPayload, PgqueError
from pgque_dagster.spark import PostgresSink
from tests.conftest import Server
from tests.support.databases import empty_database
from tests.support.queues import connect, rows

TYPES = """
create type mood as enum ('calm', 'Über');
create domain cents as numeric;
create domain small_cents as cents;
create domain short as varchar(3) check (value <> 'no');
create domain shorter as short;
"""
POSTGRES = (
    *("int2", "int4", "int8", "numeric", "cents", "small_cents", "float4", "float8", "money"),
    *("text", "varchar", "bpchar", "json", "jsonb", "uuid", "mood", "inet", "int4[]"),
    *("bytea", "boolean", "date", "timestamp", "timestamptz", "time", "timetz", "interval"),
)
NUMERIC = ("numeric", "cents", "small_cents")
TEXT = ("text", "varchar", "bpchar")
# Its values are read, or spelt as Postgres spells them.
PARSED = ("json", "jsonb", "uuid", "mood", "inet", "int4[]", "money", "timetz")
_numbers = itertools.count()


class Pairs(NamedTuple):
    """Values of a Spark type, the columns that hold them all, and those that hold others of it."""

    spark: str
    values: tuple[Any, ...]
    taken: tuple[str, ...]
    partly: tuple[str, ...] = ()


PAIRS = [
    Pairs("tinyint", (-128, 127, 0), ("int2", "int4", "int8", "float4", "float8", *NUMERIC)),
    Pairs("smallint", (-32768, 32767), ("int2", "int4", "int8", "float4", "float8", *NUMERIC)),
    Pairs("int", (-(2**31), 2**31 - 1), ("int4", "int8", "float8", *NUMERIC), ("int2",)),
    Pairs("bigint", (-(2**63), 2**63 - 1), ("int8", *NUMERIC), ("int2", "int4")),
    Pairs(
        "float",
        # The nearest floats to 0.1, to the smallest and to the largest one.
        (0.10000000149011612, -0.0, 2.0**-149, 3.4028234663852886e38, math.inf, math.nan),
        ("float4", "float8"),
    ),
    Pairs(
        "double",
        (0.1, 0.1 + 0.2, -0.0, 5e-324, 1.7976931348623157e308, 2.0**53, -math.inf, math.nan),
        ("float8",),
    ),
    Pairs(
        "decimal(38,18)",
        tuple(map(Decimal, ("1e-18", "0", "-99999999999999999999.999999999999999999", "1.10"))),
        NUMERIC,
    ),
    Pairs("decimal(38,0)", (Decimal("9" * 38),), NUMERIC),
    Pairs(
        "string",
        ("", " a  ", "tab\t\\N\r\n\\.", "'\"%s{}", "Ü\U0001f600", "\x01\x7f\u2028", "x" * 5000),
        TEXT,
        PARSED,
    ),
    Pairs("string collate UTF8_LCASE", ("Ab",), TEXT, PARSED),
    Pairs("binary", (b"", b"\x00\xff\\x", bytes(range(256))), ("bytea",)),
    Pairs("boolean", (True, False), ("boolean",)),
    Pairs("date", (date(1, 1, 1), date(1582, 10, 10), date(9999, 12, 31)), ("date",)),
    Pairs(
        "timestamp",
        tuple(
            datetime(*parts, tzinfo=UTC)
            for parts in (
                (1, 1, 2),
                (1582, 10, 10, 0, 0, 0, 1),
                (2026, 3, 8, 7, 30, 0, 999999),
                (9999, 12, 30, 23, 59, 59, 999999),
            )
        ),
        ("timestamptz",),
    ),
    Pairs(
        "timestamp_ntz",
        (
            datetime(1, 1, 1),
            # New York has no such time.
            datetime(2026, 3, 8, 2, 30, 0, 1),
            datetime(9999, 12, 31, 23, 59, 59, 999999),
        ),
        ("timestamp",),
    ),
    Pairs(
        "interval day to second",
        (
            timedelta(hours=1),
            timedelta(microseconds=-1),
            timedelta(days=400_000, microseconds=7),
            timedelta(days=-400_000),
        ),
        ("interval",),
    ),
    Pairs("interval hour", (timedelta(hours=1),), ("interval",)),
    *(
        Pairs(kind, (), ())
        for kind in (
            *("interval year to month", "array<int>", "map<string,int>", "struct<a:int>"),
            *("variant", "interval"),
        )
    ),
]


@pytest.fixture(scope="module")
def database(server: Server) -> Iterator[str]:
    """A database in a time zone of its own."""
    with empty_database(server) as made:
        with connect(made) as db:
            ((name,),) = rows(db, "select current_database()")
            db.execute(f"alter database {name} set timezone = 'Asia/Tokyo'".encode())
            db.execute(f"alter database {name} set intervalstyle = 'sql_standard'".encode())
        yield made


@pytest.fixture
def url(database: str) -> str:
    """The same database for each test, with nothing in it but types."""
    execute(database, "drop schema public cascade; create schema public", TYPES)
    return database


@pytest.fixture(autouse=True)
def spark_in_new_york(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield
    spark.conf.set("spark.sql.session.timeZone", before)


def execute(url: str, *statements: str) -> None:
    with connect(url) as db:
        for statement in statements:
            db.execute(statement.encode())


def read(url: str, query: str) -> list[tuple[Any, ...]]:
    with connect(url) as db:
        db.execute("set timezone = 'UTC'; set intervalstyle = 'postgres'")
        return rows(db, query)


def stages(url: str) -> list[tuple[Any, ...]]:
    return read(url, "select relname from pg_class where relname ~ '^pgque_stage'")


def write(url: str, table: str, frame: DataFrame, **options: Any) -> None:
    PostgresSink(table, url=url, **options).foreach_batch(query="q")(frame, next(_numbers))


def store(
    url: str, spark: SparkSession, columns: Sequence[tuple[str, tuple[Any, ...], str]]
) -> None:
    """Writes columns, each a Spark type, values, and a type of PostgreSQL, to the table stored."""
    kinds = ", ".join(f'"c{place}" {kind}' for place, (_, _, kind) in enumerate(columns))
    execute(url, "drop table if exists stored", f"create table stored (number int, {kinds})")
    given = list(zip_longest(*(values for _, values, _ in columns)))
    ddl = ", ".join(f"c{place} {spark_type}" for place, (spark_type, _, _) in enumerate(columns))
    frame = spark.createDataFrame(
        [(number, *row) for number, row in enumerate(given)], f"number int, {ddl}"
    )
    write(url, "stored", frame.coalesce(1))


def stored(url: str, column: str = "{}", count: int = 1) -> list[list[Any]]:
    """The columns of that table."""
    wanted = ", ".join(column.format(f"c{place}") for place in range(count))
    found = read(url, f"select {wanted} from stored order by number")
    return [list(values) for values in zip(*found, strict=True)]


def same(found: Any, given: Any, kind: str) -> bool:
    """Whether they are equal, also as NaN, and as zeros of one sign."""
    if found is None or given is None:
        return found is given
    if isinstance(given, float):
        # psycopg reads the shortest text of a float, as a double.
        form = ">f" if kind == "float4" else ">d"
        return struct.pack(form, found) == struct.pack(form, given)
    return bool(found == given)


def test_a_pair_that_is_taken_keeps_every_value(url: str, spark: SparkSession) -> None:
    columns = [(pairs.spark, pairs.values, kind) for pairs in PAIRS for kind in pairs.taken]
    if hasattr(types, "TimeType"):  # Spark 4.0 has no TIME
        columns.append(("time(6)", (time(0), time(23, 59, 59, 999999)), "time"))

    store(url, spark, columns)

    wrong = []
    found = stored(url, count=len(columns))
    for (spark_type, values, kind), column in zip(columns, found, strict=True):
        for value, given in zip_longest(column, values):
            if not same(value, given, kind):
                wrong.append(f"{given!r} of {spark_type} in {kind}: {value!r}")
    assert wrong == []


def test_every_other_pair_is_refused_before_spark_works(url: str, spark: SparkSession) -> None:
    for place, kind in enumerate(POSTGRES):
        execute(url, f"create table t{place} (c0 {kind})")
    for pairs in PAIRS:
        value = f"cast(raise_error('Spark worked') as {pairs.spark})"
        if pairs.spark in ("variant", "interval"):
            made = {"variant": "parse_json(raise_error('Spark worked'))"}
            value = made.get(pairs.spark, "make_interval(1)")
        frame = spark.sql(f"select {value} as c0")
        simple = frame.schema["c0"].dataType.simpleString()
        for place, kind in enumerate(POSTGRES):
            if kind in (*pairs.taken, *pairs.partly):
                continue
            with pytest.raises(InvalidArgument) as error:
                write(url, f"t{place}", frame)
            told = str(error.value)
            assert f'column c0 of "public"."t{place}" is ' in told, (pairs.spark, kind)
            assert f"which takes no {simple}" in told, (pairs.spark, kind)
            assert "in Spark" in told or "to_json(c0)" in told, (pairs.spark, kind)
    assert stages(url) == []


def test_a_time_in_another_sense_says_how_to_cast(url: str, spark: SparkSession) -> None:
    execute(url, "create table notes (at timestamp)")

    with pytest.raises(InvalidArgument) as refused:
        write(url, "notes", spark.sql(f"select current_timestamp() as at {UNWORKABLE}"))

    assert str(refused.value) == (
        'column at of "public"."notes" is timestamp without time zone, which takes no timestamp. '
        "It takes timestamp_ntz. Cast at in Spark, or change the table's column."
    )


def test_nulls_of_no_type_go_into_any_column(url: str, spark: SparkSession) -> None:
    store(url, spark, [("void", (None,), kind) for kind in POSTGRES])

    assert stored(url, count=len(POSTGRES)) == [[None]] * len(POSTGRES)


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


def test_a_value_that_the_column_would_change_is_refused_and_nothing_stored(
    url: str, spark: SparkSession
) -> None:
    for spark_type, value, kind in CHANGED:
        with pytest.raises(InvalidArgument, match=r'column c0 of "public"\."stored", '):
            store(url, spark, [(spark_type, (None, value), kind)])
            pytest.fail(f"{value} is stored in {kind}")
        assert read(url, "select * from stored") == stages(url) == []


UNWORKABLE = "where raise_error('Spark worked') is null"
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


@pytest.mark.parametrize(("table", "there", "given", "options", "told"), REFUSED)
def test_rows_that_the_table_does_not_hold_are_refused_as_a_whole(
    url: str, spark: SparkSession, table: str, there: str, given: str, options: Any, told: str
) -> None:
    execute(url, table)
    if there:
        execute(url, f"insert into t values ({there})")
    before = read(url, "select * from t")

    with pytest.raises((InvalidArgument, MalformedPayload), match=told):
        write(url, "t", spark.sql(given).coalesce(1), **options)

    assert read(url, "select * from t") == before
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


@pytest.mark.parametrize(("table", "given", "options", "expected"), KEPT)
def test_rows_that_the_table_holds_are_kept_exactly(
    url: str, spark: SparkSession, table: str, given: str, options: Any, expected: Any
) -> None:
    execute(url, table)
    times = 1 if options.get("once") else 2
    for _ in range(times):
        write(url, "t", spark.sql(given), **{n: x for n, x in options.items() if n != "once"})

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
