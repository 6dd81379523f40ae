"""What payload=json writes, `payload` reads back by the same schema: equal, or it is refused."""

import json
import random
import struct
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import types as t

from pgque_dagster.client import Client, InvalidArgument
from pgque_dagster.spark import SparkBatch
from pgque_dagster.spark.payload.json_parser import PayloadParser
from pgque_dagster.spark.writing.event_columns import EventColumns
from pgque_dagster.spark.writing.json_writer import write_objects
from tests.spark.writing.test_writer import sent, write
from tests.support.events import claim, tick

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
    "`a \"b\\ä\nc.d` string": ["x"],
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
    return PayloadParser(t.StructType().add("x", data_type)).parse(pa.array(["{}"])).columns[0].type


def test_each_value_of_each_type_is_read_back_as_it_was(
    client: Client, spark: SparkSession, way: str, elsewhere: None
) -> None:
    schema = t.StructType.fromDDL(", ".join([*VALUES, "nr int not null"]))
    table = given(schema)
    frame = spark.createDataFrame(table, schema)

    write(frame, client, payload="json")

    tick(client)
    batch = SparkBatch(spark, claim(client), client.url)
    found = batch.payload(frame.schema, on_malformed="fail").orderBy("nr").toArrow()
    # By their text, since 0.0 equals -0.0.
    rows = [str(row) for row in found.cast(table.schema).to_pylist()]
    assert rows == [str(row) for row in table.to_pylist()]


def test_payloads_are_json_as_other_readers_want_it(client: Client, spark: SparkSession) -> None:
    frame = spark.sql(
        "select float(0.1) as f, double(1) as d, cast('0.0000000001' as decimal(12,10)) as small,"
        " timestamp'2026-01-31 12:00:00+01:00' as at, timestamp_ntz'2026-01-31 12:00:00.5' as ntz,"
        " x'00ff' as raw, map('k', cast(null as int)) as m, array(1, null) as a,"
        " named_struct('x', cast(null as int)) as s, cast(null as int) as n"
    )

    write(frame, client, payload="json")

    (event,) = sent(client)
    assert event.payload == (
        '{"f":0.1,"d":1.0,"small":"0.0000000001","at":"2026-01-31T11:00:00Z",'
        '"ntz":"2026-01-31T12:00:00.500000","raw":"AP8=","m":{"k":null},"a":[1,null],"s":{}}'
    )


def test_any_float_and_double_is_written_so_that_it_is_read_back() -> None:
    noise = random.Random(12)
    doubles = [struct.unpack("<d", noise.randbytes(8))[0] for _ in range(20_000)]
    singles = [struct.unpack("<f", noise.randbytes(4))[0] for _ in range(20_000)]
    batch = pa.RecordBatch.from_pydict({
        "d": pa.array([x for x in doubles if abs(x) < float("inf")][:19_000], pa.float64()),
        "f": pa.array([x for x in singles if abs(x) < float("inf")][:19_000], pa.float32()),
    })  # fmt: skip

    texts = write_objects(batch)

    parsed = PayloadParser(t.StructType.fromDDL("d double, f float")).parse(texts)
    assert parsed.reasons.null_count == len(texts)
    assert [str(x) for x in chain(*parsed.columns)] == [str(x) for x in chain(*batch.columns)]


def test_a_batch_that_is_a_part_of_another_is_written_as_itself() -> None:
    columns = {
        "a": pa.array([["x"], None, [], ["y", None]], pa.list_(pa.string())),
        "m": pa.array([[("x", 1)], None, [], [("y", 2)]], pa.map_(pa.string(), pa.int32())),
        "s": pa.array([{"b": 1}, None, {"b": None}, {"b": 2}]),
    }

    texts = write_objects(pa.RecordBatch.from_pydict(columns)[1:])

    assert [json.loads(text) for text in texts.to_pylist()] == [
        {},
        {"a": [], "m": {}, "s": {}},
        {"a": ["y", None], "m": {"y": 2}, "s": {"b": 2}},
    ]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([1.0, float("nan")]), "column x holds NaN or an infinity"),
        (pa.array([float("-inf")], pa.float32()), "column x holds NaN or an infinity"),
        (pa.array([[{"y": 1.0}, {"y": float("nan")}]]), r"column x\[\].y holds NaN"),
        (pa.array([[("k", float("inf"))]], pa.map_("string", "double")), r"column x\[\] holds NaN"),
        (pa.array([None, 2_932_897], pa.int32()).cast("date32"), "column x holds a date before"),
        (pa.array([-719_163, 0], pa.int32()).cast("date32"), "or after 9999"),
        (pa.array([253402300800000000]).cast(pa.timestamp("us")), "column x holds a date"),
        (pa.array([-62135596800000001]).cast(pa.timestamp("us", "UTC")), "column x holds a date"),
        (pa.array([-(2**63)]).cast(pa.timestamp("us", "UTC")), "column x holds a date"),
    ],
)
def test_a_value_that_json_cannot_express_is_refused_by_its_column(
    column: pa.Array, message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        write_objects(pa.RecordBatch.from_pydict({"x": column}))


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("x map<int,string>", "x is of type map<int,string>"),
        ("x array<map<binary,int>>", r"x\[\] is of type map<binary,int>"),
        ("x interval day to second", "x is of type interval day to second"),
        ("x interval year to month", "x is of type interval year to month"),
        ("x variant", "x is of type variant"),
        ("x void", "x is of type void"),
        ("x struct<y: variant>", "x.y is of type variant"),
        ("x char(3)", r"x is of type char\(3\)"),
        ("x varchar(3)", r"x is of type varchar\(3\)"),
        ("x int, x string", "has x twice"),
        ("x struct<y: int, y: int>", "has x.y twice"),
    ],
)
def test_a_type_that_payload_does_not_read_is_refused_by_its_column(ddl: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as caught:
        EventColumns.of(t.StructType.fromDDL(ddl), None, "json")

    assert "build the payload in Spark and name it data" in caught.value.hint


def test_what_json_cannot_express_fails_the_whole_write(
    client: Client, spark: SparkSession
) -> None:
    for expression, message in (
        ("if(id = 1, double('NaN'), null) as x", "column x holds NaN or an infinity"),
        ("if(id = 1, cast(x'ff' as string), null) as x", "invalid byte sequence"),
        ("if(assert_true(false) is null, interval '1' hour, null) as x", "x is of type interval"),
    ):
        with pytest.raises(PySparkException, match=message):
            write(spark.range(3).selectExpr("id", expression), client, payload="json")

    assert sent(client) == []
