"""Values as `pgque.capture` publishes them, with what docs/capture.md says of each Spark type."""

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from pyspark.sql import types as t

from tests.spark.payload.payload_values import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INSTANT,
    INT8,
    INT16,
    INT32,
    INT64,
    LOCAL,
    MONEY,
    STRING,
    WIDE,
)  # fmt: skip

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)

# JSON, and what is read of each.
TAKEN: list[tuple[t.DataType, dict[Any, Any]]] = [
    (STRING, {**{text: text for text in ("", "t", "1.10", "infinity", "a\n\u00e9&=+%")},
              7: "7", 2**63 - 1: str(2**63 - 1)}),
    (BOOLEAN, {True: True}),
    (INT8, {127: 127, -128: -128, 0: 0}),
    (INT16, {32767: 32767, -32768: -32768}),
    (INT32, {2147483647: 2**31 - 1, -2147483648: -(2**31), 123456789: 123456789}),
    (INT64, {2**63 - 1: 2**63 - 1, -(2**63): -(2**63)}),
    (MONEY, {"1.5": Decimal("1.50"), "-999.99": Decimal("-999.99"), "1.500": Decimal("1.50"),
             "0": Decimal("0.00"), "1e+02": Decimal("100.00"), 7: Decimal("7.00")}),
    (WIDE, {"12345678901234567890.123456789012345678":
            Decimal("12345678901234567890.123456789012345678")}),
    (
        DOUBLE,
        {
            7: 7.0, "0.1": 0.1, "-0": -0.0, "0.30000000000000004": 0.30000000000000004,
            "1e+20": 1e20, "5e-324": 5e-324, "1.7976931348623157e+308": 1.7976931348623157e308,
            "NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf,
            # Python prints another text, 1e+23.
            "9.999999999999999e+22": 1e23,
            "123456789012345.6000000000000000000000": 123456789012345.6,
            "1152921504606846976": 2.0**60, "0.00000000": 0.0,
            # A number with more digits than a double holds is read as the nearest one.
            "0.1234567890123456789": 0.12345678901234568, "9007199254740993": 2.0**53,
            "12345678901234567890.12": 12345678901234567000.0, "1e-400": 0.0,
            "0." + "1" * 5000: 0.1111111111111111, "-1e-400": -0.0,
        },
    ),
    (
        FLOAT,
        {
            "0.1": 0.10000000149011612, "-0": -0.0, "16777216": 16777216.0, "1e-45": 2.0**-149,
            "3.4028235e+38": 3.4028234663852886e38, "NaN": math.nan, "-Infinity": -math.inf,
            "0.30000000000000004": 0.30000001192092896, "16777217": 16777216.0, "1e-60": 0.0,
            # Nearest double is half-way between two floats, the number is not.
            "16777217.00000000000000000000001": 16777218.0, "7.038531e-26": 7.038530691851209e-26,
        },
    ),
    (BINARY, {r"\x": b"", r"\x00ff": b"\0\xff"}),
    (DATE, {"2026-01-31": date(2026, 1, 31), "0001-01-01": date(1, 1, 1), "9999-12-31": date.max,
            "1582-10-10": date(1582, 10, 10)}),
    (
        INSTANT,
        {
            "2026-01-31T12:00:00+00:00": NOON,
            "2026-01-31T12:00:00.5+00:00": NOON.replace(microsecond=500_000),
            "0001-01-01T00:00:00+00:00": datetime(1, 1, 1, tzinfo=UTC),
            "9999-12-31T23:59:59.999999+00:00": datetime.max.replace(tzinfo=UTC),
        },
    ),
    (LOCAL, {"2026-01-31T12:00:00": datetime(2026, 1, 31, 12),
             "2026-03-29T02:30:00.000001": datetime(2026, 3, 29, 2, 30, 0, 1)}),
    (t.ArrayType(INT32), {"{1,NULL,-3}": [1, None, -3], "{}": []}),
    (t.ArrayType(BOOLEAN), {"{t,f,NULL}": [True, False, None]}),
    (
        t.ArrayType(STRING),
        {
            r'{a,"b,c","NULL",NULL,"x\"y\\z","","{1}"}':
                ["a", "b,c", "NULL", None, 'x"y\\z', "", "{1}"],
            "{t,1}": ["t", "1"],
            '{"a\nb"}': ["a\nb"],
        },
    ),
    (t.ArrayType(MONEY), {"{1.50,NULL}": [Decimal("1.50"), None]}),
    (t.ArrayType(DOUBLE), {"{0.1,-0,Infinity}": [0.1, -0.0, math.inf]}),
    (t.ArrayType(BINARY), {r'{"\\x00ff","\\x"}': [b"\0\xff", b""]}),
    (t.ArrayType(DATE), {"{0001-01-01,9999-12-31}": [date(1, 1, 1), date.max]}),
    (t.ArrayType(INSTANT), {'{"2026-01-31 12:00:00+00"}': [NOON]}),
    (t.ArrayType(LOCAL), {'{"2026-01-31 12:00:00.5"}': [datetime(2026, 1, 31, 12, 0, 0, 500000)]}),
]  # fmt: skip

# JSON that is none of the type.
REFUSED: list[tuple[t.DataType, list[Any]]] = [
    (STRING, [1.5, [], {}]),
    (BOOLEAN, ["t", "true", 1, 0, ""]),
    (INT8, [128, -129, "7", "7.00", "", True, 7.5]),
    (INT16, [32768]),
    (INT32, [2147483648, "1.5"]),
    (INT64, [2**63, "7"]),
    (MONEY, ["1.005", "1000", 1000, "$1.50", "1,5", "NaN", "Infinity", "-Infinity", "", "t", True]),
    (WIDE, ["0.1234567890123456789", "1e-19"]),
    (
        DOUBLE,
        ["1e400", "1" * 5000, "Infinity ", "", "1,5", "$1.00", True, "x"],
    ),
    (FLOAT, ["1e39", "-1e39"]),
    (BINARY, ["", "00ff", r"\x0", r"\x0g", r"\000\377", "AAE=", 7]),
    (
        DATE,
        [
            "0044-03-15 BC", "infinity", "-infinity", "10000-01-01", "31.01.2026", "01/31/2026",
            "31-01-2026", "2026-01-31 12:00:00", "2026-02-30", "",
        ],
    ),
    (
        INSTANT,
        [
            "0044-03-15 07:03:58-04:56:02 BC", "infinity", "-infinity", "10000-01-01 00:00:00+00",
            "31.01.2026 12:00:00 UTC", "01/31/2026 12:00:00 UTC", "Sat Jan 31 12:00:00 2026 UTC",
            "2026-01-31", "2026-01-31 12:00:00+30", "1883-01-01T07:03:58-04:56:02",
            "0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59-00:01", "12:00:00+00", "", 7,
        ],
    ),
    (LOCAL, ["0044-03-15 12:00:00 BC", "infinity", "2026-01-31", "31.01.2026 12:00:00"]),
    (
        t.ArrayType(INT32),
        ["{{1,2},{3,4}}", "[0:1]={1,2}", "{a}", "{2147483648}", "1", "", [1], "{1.5}"],
    ),
    (t.ArrayType(INT32, False), ["{1,NULL}"]),
    (t.ArrayType(BOOLEAN), ["{true}", "{1}"]),
    (t.ArrayType(MONEY), ["{1.005}", "{NaN}"]),
    (t.ArrayType(DATE), ["{infinity}", '{"0044-03-15 BC"}']),
    (t.ArrayType(INSTANT), ['{"2026-01-31 12:00:00"}', "{infinity}"]),
]  # fmt: skip
