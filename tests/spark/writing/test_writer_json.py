"""What `to_json` makes as docs/payloads.md says, `payload` reads back as equal values."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as t

from pgque_dagster.client import Client
from pgque_dagster.spark import SparkBatch
from pgque_dagster.spark.payload.reader import json_column
from tests.spark.writing.test_writer import write
from tests.support.queues.events import claim, tick

AS_DOCUMENTED = """
to_json(struct(*), map(
    'timestampFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    'timestampNTZFormat', "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    'timeZone', 'UTC'
)) as data
"""
TEXTS = [
    "", " ", "null", "\0", "a\tb\r\n\b\f\x1f\x7f", 'quo"te', "back\\slash", "\\u0041", "é漢😀",
    "\ufeff", "\u2028", "{}", "1.10", "</script>",
]  # fmt: skip
FLOATS = [
    0.0, -0.0, 0.1, -1.5, 1e10, 16777216.0, 3.4028234663852886e38, 1.401298464324817e-45,
    1.1754943508222875e-38, 1e-7,
]  # fmt: skip
DOUBLES = [
    0.0, -0.0, 0.1, 0.30000000000000004, 1e16, 123456789012345680.0, 1.7976931348623157e308, 5e-324,
    2.2250738585072014e-308, -1e22,
]  # fmt: skip
DATES = [date(1, 1, 1), date(9999, 12, 31), date(1582, 10, 10), date(1969, 12, 31)]
LOCAL = [
    datetime(1, 1, 1),
    datetime(9999, 12, 31, 23, 59, 59, 999999),
    datetime(1969, 12, 31, 23, 59, 59, 999999),
    datetime(2026, 3, 29, 2, 30),
    datetime(2026, 1, 2, 3, 4, 5, 100000),
]
INSTANTS = [at.replace(tzinfo=UTC) for at in LOCAL]
# Columns, with nasty values; each has null besides.
VALUES: dict[str, list[Any]] = {
    "yes boolean": [True, False],
    "tiny tinyint": [127, -128],
    "small smallint": [32767, -32768],
    "whole int": [2**31 - 1, -(2**31)],
    "large bigint": [2**63 - 1, -(2**63), 2**53 + 1],
    "single float": FLOATS,
    "double double": DOUBLES,
    "money decimal(5,2)": [Decimal("999.99"), Decimal("-0.01"), Decimal("0.00"), Decimal("1.50")],
    "digits decimal(38,0)": [Decimal("9" * 38), Decimal("-" + "9" * 38), Decimal(0)],
    "fraction decimal(38,38)": [Decimal("1E-38"), Decimal("-1E-38"), Decimal("0." + "9" * 38)],
    "tenth decimal(20,10)": [Decimal("1E-10"), Decimal("1234567890.0123456789"), Decimal("0E-10")],
    "text string": TEXTS,
    "raw binary": [b"", b"\0", b"\xff\xfe\xfd", bytes(range(256)), b"ab"],
    "day date": DATES,
    "at timestamp": INSTANTS,
    "local timestamp_ntz": LOCAL,
    "`a ä.d` string": ["x"],
    "singles array<float>": [[], [0.1, None, -0.0]],
    "nested array<array<string>>": [[], [[], None, [None, "a,b", "]"]]],
    "prices map<string,decimal(10,8)>":
        [[], [(text, Decimal("1E-8")) for text in TEXTS], [("a", None)]],
    "inside struct<a: date, b: array<struct<c: timestamp, d: map<string,binary>>>, e: struct<>>": [
        {"a": None, "b": None, "e": None}, {"a": DATES[0], "b": [], "e": {}},
        {"a": None, "e": {}, "b": [
            None, {"c": None, "d": []}, {"c": INSTANTS[0], "d": [("k", b"v"), ("n", None)]}
        ]},
    ],
}  # fmt: skip


@pytest.fixture
def elsewhere(spark: SparkSession) -> Iterator[None]:
    """A session whose time zone is not UTC."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield
    assert zone is not None
    spark.conf.set("spark.sql.session.timeZone", zone)


def given(schema: t.StructType) -> pa.Table:
    """A row for each value, then one of nulls alone, with a number for the order."""
    rows = max(map(len, VALUES.values())) + 1
    columns = {
        field.name: pa.array(values + [None] * (rows - len(values)), arrow_type(field.dataType))
        for field, values in zip(schema, VALUES.values(), strict=False)
    }
    return pa.table({**columns, "nr": pa.array(range(rows), pa.int32())})


def arrow_type(data_type: t.DataType) -> pa.DataType:
    return json_column(data_type, "x").arrow


def test_each_value_of_each_type_is_read_back_as_it_was(
    client: Client, spark: SparkSession, elsewhere: None
) -> None:
    schema = t.StructType.fromDDL(", ".join([*VALUES, "nr int not null"]))
    table = given(schema)
    frame = spark.createDataFrame(table, schema)

    write(frame.selectExpr(AS_DOCUMENTED), client)

    tick(client)
    batch = SparkBatch(spark, claim(client), client.url)
    found = batch.payload(frame.schema, on_malformed="fail").orderBy("nr").toArrow()
    # By their text, since 0.0 equals -0.0.
    rows = [str(row) for row in found.cast(table.schema).to_pylist()]
    assert rows == [str(row) for row in table.to_pylist()]
