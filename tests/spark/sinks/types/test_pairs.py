"""What a Postgres sink stores is what it was given, or it stores nothing.

Every pair of a Spark and a Postgres type is equal, or refused before Spark works.

The oracle is Python: what psycopg reads from the table are the values that Spark was given. Spark
and the database work in two time zones, neither of them UTC.
"""

import math
import struct
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import zip_longest
from typing import Any, NamedTuple

import pytest
from psycopg.sql import Identifier
from pyspark.sql import SparkSession, types

from pgque_dagster.client import InvalidArgument
from pgque_dagster.spark.sinks.postgres.columns import fit
from tests.support.queues.sql import connect
from tests.support.spark.typed_tables import UNWORKABLE, execute, stages, store, stored, write

POSTGRES = (
    *("int2", "int4", "int8", "numeric", "cents", "small_cents", "float4", "float8", "money"),
    *("text", "varchar", "bpchar", "json", "jsonb", "uuid", "mood", "inet", "int4[]"),
    *("bytea", "boolean", "date", "timestamp", "timestamptz", "time", "timetz", "interval"),
)
NUMERIC = ("numeric", "cents", "small_cents")
TEXT = ("text", "varchar", "bpchar")
# Its values are read, or spelt as Postgres spells them.
PARSED = ("json", "jsonb", "uuid", "mood", "inet", "int4[]", "money", "timetz")


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
        refused = [
            (f"t{place}", kind)
            for place, kind in enumerate(POSTGRES)
            if kind not in (*pairs.taken, *pairs.partly)
        ]
        with connect(url) as db:
            for table, kind in refused:
                with pytest.raises(InvalidArgument) as error:
                    fit(db, Identifier("public", table), frame.schema)
                told = str(error.value)
                assert f'column c0 of "public"."{table}" is ' in told, (pairs.spark, kind)
                assert f"which takes no {simple}" in told, (pairs.spark, kind)
                assert "in Spark" in told or "to_json(c0)" in told, (pairs.spark, kind)
        # The sink asks in the same way, before it does anything else.
        with pytest.raises(InvalidArgument, match="which takes no "):
            write(url, refused[0][0], frame)
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
