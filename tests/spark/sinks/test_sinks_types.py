"""Every pair of a Spark and a Postgres type: equal, or refused before Spark works.

The oracle is Python: what psycopg reads from the table are the values that Spark was given. Spark
and the database work in two time zones, neither of them UTC.
"""

import itertools
import math
import struct
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession, types

from pgque_dagster.client import InvalidArgument
from pgque_dagster.spark.sinks import PostgresSink
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
def url(server: Server) -> Iterator[str]:
    """A database for all pairs, in a time zone of its own."""
    with empty_database(server) as made:
        with connect(made) as db:
            ((name,),) = rows(db, "select current_database()")
            db.execute(f"alter database {name} set timezone = 'Asia/Tokyo'".encode())
            db.execute(f"alter database {name} set intervalstyle = 'sql_standard'".encode())
            db.execute(TYPES.encode())
        yield made


@pytest.fixture(autouse=True)
def spark_in_new_york(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield
    spark.conf.set("spark.sql.session.timeZone", before)


def write(url: str, table: str, frame: DataFrame) -> None:
    PostgresSink(table, url=url).foreach_batch(query="pairs")(frame, next(_numbers))


def make_tables(url: str, tables: dict[str, tuple[str, ...]]) -> None:
    """Makes tables anew, with a column c0, c1 … for each of the types."""
    with connect(url) as db:
        for name, kinds in tables.items():
            columns = ", ".join(f'"c{place}" {kind}' for place, kind in enumerate(kinds))
            db.execute(f"drop table if exists {name}".encode())
            db.execute(f"create table {name} (number int, {columns})".encode())


def store(
    url: str, spark: SparkSession, ddl: str, values: tuple[Any, ...], kinds: tuple[str, ...]
) -> None:
    """Writes values to a table with a column for each of these types."""
    make_tables(url, {"stored": kinds})
    frame = spark.createDataFrame(list(enumerate(values)), f"number int, value {ddl}")
    copies = (f"value as c{place}" for place in range(len(kinds)))
    write(url, "stored", frame.selectExpr("number", *copies))


def stored(url: str) -> list[list[Any]]:
    """The columns of that table."""
    with connect(url) as db:
        db.execute("set timezone = 'UTC'; set intervalstyle = 'postgres'")
        found = rows(db, "select * from stored order by number")
    return [list(column) for column in zip(*found, strict=True)][1:]


def same(found: Any, given: Any, kind: str) -> bool:
    """Whether they are equal, also as NaN, and as zeros of one sign."""
    if isinstance(given, float):
        # psycopg reads the shortest text of a float, as a double.
        form = ">f" if kind == "float4" else ">d"
        return struct.pack(form, found) == struct.pack(form, given)
    return bool(found == given)


@pytest.mark.parametrize(
    "pairs", [pairs for pairs in PAIRS if pairs.taken], ids=lambda it: it.spark
)
def test_a_pair_that_is_taken_keeps_every_value(
    url: str, spark: SparkSession, pairs: Pairs
) -> None:
    values = (*pairs.values, None)

    store(url, spark, pairs.spark, values, pairs.taken)

    for kind, column in zip(pairs.taken, stored(url), strict=True):
        for found, given in zip(column, values, strict=True):
            assert (found is None) == (given is None), kind
            assert given is None or same(found, given, kind), f"{given!r} in {kind}: {found!r}"


@pytest.mark.parametrize("pairs", PAIRS, ids=lambda it: it.spark)
def test_every_other_pair_is_refused_before_spark_works(
    url: str, spark: SparkSession, pairs: Pairs
) -> None:
    refused = [kind for kind in POSTGRES if kind not in (*pairs.taken, *pairs.partly)]
    value = f"cast(raise_error('Spark worked') as {pairs.spark})"
    if pairs.spark == "variant":
        value = "parse_json(raise_error('Spark worked'))"
    frame = spark.sql(
        "select make_interval(1) as c0" if pairs.spark == "interval" else f"select {value} as c0"
    )
    make_tables(url, {f"t{place}": (kind,) for place, kind in enumerate(refused)})

    assert refused
    for place, kind in enumerate(refused):
        with pytest.raises(InvalidArgument) as error:
            write(url, f"t{place}", frame)
        told = str(error.value)
        assert f'column c0 of "public"."t{place}" is ' in told, kind
        assert f"which takes no {frame.schema['c0'].dataType.simpleString()}" in told, kind
        assert "in Spark" in told or "to_json(c0)" in told, kind
    with connect(url) as db:
        assert rows(db, "select relname from pg_class where relname ~ '^pgque_stage'") == []


def test_times_of_day_are_kept(url: str, spark: SparkSession) -> None:
    if not hasattr(types, "TimeType"):
        pytest.skip("Spark 4.0 has no TIME")
    values = (time(0), time(23, 59, 59, 999999))

    store(url, spark, "time(6)", values, ("time",))

    assert stored(url) == [list(values)]


def test_nulls_of_no_type_go_into_any_column(url: str, spark: SparkSession) -> None:
    store(url, spark, "void", (None,), POSTGRES)

    assert stored(url) == [[None]] * len(POSTGRES)


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        ("json", ('{"a": 1e5,  "a":2}', '"\\u0000"')),
        ("uuid", ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11")),
        ("mood", ("calm", "Über")),
        ("inet", ("10.0.0.1", "10.0.0.0/8")),
        ("int4[]", ("{1,NULL}", "{}")),
        ("varchar(3)", ("", "abc", "a  ")),
        ("char(3)", ("abc", "a  ")),
        ("short", ("abc",)),
        ("shorter", ("yes",)),
    ],
)
def test_texts_that_a_type_takes_are_kept(
    url: str, spark: SparkSession, kind: str, texts: tuple[str, ...]
) -> None:
    store(url, spark, "string", texts, (kind,))

    with connect(url) as db:
        found = rows(db, "select format('%s', c0) from stored order by number")
    lower = kind == "uuid"
    assert [text for (text,) in found] == [text.lower() if lower else text for text in texts]


def test_json_is_kept_as_its_value_in_jsonb(url: str, spark: SparkSession) -> None:
    store(url, spark, "string", ('{"b": 1.10, "a": [null, 1e400]}',), ("jsonb",))

    with connect(url) as db:
        assert rows(db, 'select c0 = \'{"a": [null, 1e400], "b": 1.1}\' from stored') == [(True,)]


@pytest.mark.parametrize(
    ("spark_type", "value", "kind"),
    [
        ("int", 32768, "int2"),
        ("bigint", -(2**31) - 1, "int4"),
        ("int", 100, "numeric(2)"),
        ("bigint", 10**8, "numeric(10,2)"),
        ("decimal(10,3)", Decimal("0.005"), "numeric(10,2)"),
        ("decimal(10,2)", Decimal("100.00"), "numeric(4,2)"),
        ("decimal(10,2)", Decimal("0.01"), "numeric(4)"),
        ("string", "abcd", "varchar(3)"),
        ("string", "abc ", "varchar(3)"),
        ("string", "ab", "char(3)"),
        ("string", "", "char(3)"),
        ("string", "no!!", "shorter"),
        ("string", "x", "uuid"),
        ("string", "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}", "uuid"),
        ("string", "Calm", "mood"),
        ("string", "{'a': 1}", "json"),
        ("string", '{"a": 1} x', "jsonb"),
        ("string", '"\\u0000"', "jsonb"),
        ("string", "10.0.0.1/32", "inet"),
        ("string", "{ 1 }", "int4[]"),
        ("string", "1011", "bit(3)"),
        ("string", "x" * 64, "name"),
        ("timestamp", datetime(2026, 1, 2, 3, 4, 5, 1, UTC), "timestamptz(3)"),
        ("timestamp_ntz", datetime(2026, 1, 2, 3, 4, 5, 500000), "timestamp(0)"),
        ("interval day to second", timedelta(hours=1, seconds=1), "interval hour"),
        ("interval day to second", timedelta(microseconds=1), "interval(3)"),
    ],
)
def test_a_value_that_the_column_would_change_is_refused_and_nothing_stored(
    url: str, spark: SparkSession, spark_type: str, value: Any, kind: str
) -> None:
    with pytest.raises(InvalidArgument, match=r'column c0 of "public"\."stored", '):
        store(url, spark, spark_type, (None, value), (kind,))

    assert stored(url) == []
    with connect(url) as db:
        assert rows(db, "select relname from pg_class where relname ~ '^pgque_stage'") == []
