"""Nasty payloads, with what docs/payloads.md says of each: the values, or the reason."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pyspark.sql import types as t

from tests.spark.payload.payload_values import (
    INSTANT,
    INT32,
    INT64,
    LOCAL,
    MONEY,
    REFUSED,
    STRING,
    TAKEN,
    fields,
)  # fmt: skip

# Each malformed document has its own words.
NO_JSON = ""
NO_OBJECT = "Expected `object`"


@dataclass(frozen=True)
class Case:
    """A payload, its schema, and the values or a part of the reason."""

    schema: t.StructType
    payload: str
    values: dict[str, Any] | None = None
    reason: str | None = None


def required(**types: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind, False) for name, kind in types.items()])


# Whole documents, read as `x bigint, s string`.
_PLAIN = fields(x=INT64, s=STRING)
DOCUMENTS: dict[str, dict[str, Any] | str] = {
    "{}": {"x": None, "s": None}, ' \t\r\n{ "x" : 1 }\n': {"x": 1, "s": None},
    '\ufeff{"x":1}': NO_JSON, '{"x":1,"x":2}': {"x": 2, "s": None},
    '{"s":"x","s":null}': {"x": None, "s": None}, '{"x":"no","x":1}': "`$.x`",
    '{"x":1,"x":"no"}': "`$.x`", '{"\\u0078":1}': {"x": 1, "s": None},
    '{"X":1}': {"x": None, "s": None}, '{"x":1,"more":{"x":2}}': {"x": 1, "s": None},
    '{"x":1,"more":' + "1" * 1500 + "}": {"x": 1, "s": None},
    '{"x":1,"more":1e999999999999999999999}': {"x": 1, "s": None},
    '{"x":1,"more":' + "[" * 499 + "]" * 499 + "}": {"x": 1, "s": None},
    '{"x":1,"more":' + '{"a":' * 499 + "1" + "}" * 499 + "}": {"x": 1, "s": None},
    '{"x":1,"more":[' + "[]," * 1500 + "1]}": {"x": 1, "s": None},
    '{"x":1,"more":"' + "[" * 1500 + '\\""}': {"x": 1, "s": None},
    '{"x":1,"more":' + "[" * 100_000 + "]" * 100_000 + "}": "too many levels",
    '{"x":1,"":{}}': {"x": 1, "s": None}, '{"x":1.5,"s":2}': "got `float` - at `$.x`",
    "": NO_JSON, " ": NO_JSON, "\ufeff": NO_JSON, "\ufeff\ufeff{}": NO_JSON,
    ' \ufeff{"x":1}': NO_JSON, "{": NO_JSON, '{"x":1': NO_JSON, '{"x"': NO_JSON, '{"x":}': NO_JSON,
    '{"x" 1}': NO_JSON, '{"x":1,}': NO_JSON, "{,}": NO_JSON, '{"x":1]': NO_JSON,
    '{"x":1}}': NO_JSON, '{"x":1} garbage': NO_JSON, '{"x":1}{"x":2}': NO_JSON,
    '{"x":1}\n{"x":2}': NO_JSON, '{"x":1}\0': NO_JSON, '{"x":1},': NO_JSON, "{'x':1}": NO_JSON,
    "{\"s\":'x'}": NO_JSON, "{x:1}": NO_JSON, "{1:1}": NO_JSON, '{"x":NaN}': NO_JSON,
    '{"more":NaN}': NO_JSON, '{"more":-Infinity}': NO_JSON, '{"x":01}': NO_JSON,
    '{"x":+1}': NO_JSON, '{"x":1.}': NO_JSON, '{"x":.5}': NO_JSON, '{"x":1e}': NO_JSON,
    '{"x":0x1}': NO_JSON, '{"x":\uff11}': NO_JSON, '{"x":-}': NO_JSON, '{"more":1.}': NO_JSON,
    '{"more":[1,]}': NO_JSON, '{"more":[1 2]}': NO_JSON, '{"x":True}': NO_JSON,
    '{"x":None}': NO_JSON, '{"x":undefined}': NO_JSON, '{"x":1 /* one */}': NO_JSON,
    '{"s":"a\nb"}': NO_JSON, '{"s":"a\tb"}': NO_JSON, '{"more":"\0"}': NO_JSON,
    '{"s":"\\x41"}': NO_JSON, '{"s":"\\u12"}': NO_JSON, '{"more":"\\q"}': NO_JSON,
    '{"s":"open}': NO_JSON, '{"x":1,"more":' + "[" * 1500 + "}": NO_JSON, '\x0c{"x":1}': NO_JSON,
    '\xa0{"x":1}': NO_JSON, '{"s":"\\ud800"}': NO_JSON, '{"s":"\\udc00"}': NO_JSON,
    '{"s":"\\ude00\\ud83d"}': NO_JSON, '{"s":"\\ud800x"}': NO_JSON,
    '{"more":"\\ud800"}': NO_JSON, '{"\\ud800":1}': NO_JSON, '["\\ud800"]': NO_JSON,
    '{"s":"\\ud800"} x': NO_JSON, "[]": NO_OBJECT, '[{"x":1}]': NO_OBJECT, "42": NO_OBJECT,
    '"text"': NO_OBJECT, "null": NO_OBJECT, "true": NO_OBJECT,
}  # fmt: skip

_ADDRESS = t.StructType([t.StructField("street", STRING, False), t.StructField("at", INSTANT)])
_ORDER = t.StructType(
    [
        t.StructField("id", INT64, False),
        t.StructField("total", MONEY, False),
        t.StructField("home", _ADDRESS),
        t.StructField("lines", t.ArrayType(required(sku=STRING, price=MONEY), False)),
        t.StructField("tags", t.MapType(STRING, required(n=INT32), False)),
    ]
)
_ALL_NULL = {"home": None, "lines": None, "tags": None}
_READ = {"id": 1, "total": Decimal("2.00"), **_ALL_NULL}
_NEEDED = '{"id":1,"total":2'
# Of nested fields and of what is NOT NULL.
ORDERS: dict[str, dict[str, Any] | str] = {
    _NEEDED + "}": _READ,
    _NEEDED + ',"home":null,"lines":null,"tags":null}': _READ,
    _NEEDED + ',"home":{"street":"x"},"home":null}': _READ,
    _NEEDED + ',"home":{"street":"x","at":"2026-01-31T12:00:00Z"},"home":{"street":"y"}}': {
        **_READ,
        "home": {"street": "y", "at": None},
    },
    _NEEDED + ',"lines":[],"tags":{}}': {**_READ, "lines": [], "tags": []},
    _NEEDED + ',"lines":[{"sku":"a","price":"1.5"},{"sku":"b","price":1e1}]}': {
        **_READ,
        "lines": [{"sku": "a", "price": Decimal("1.50")}, {"sku": "b", "price": Decimal("10.00")}],
    },
    _NEEDED + ',"tags":{"a":{"n":1},"b":{"n":2}}}': {
        **_READ,
        "tags": [("a", {"n": 1}), ("b", {"n": 2})],
    },
    "{}": "Object missing required field `id`",
    '{"id":null,"total":2}': "Expected `int`, got `null` - at `$.id`",
    '{"id":1,"total":null}': "Expected `decimal`, got `null` - at `$.total`",
    '{"id":1,"id":null,"total":2}': "Expected `int`, got `null` - at `$.id`",
    '{"id":"one"}': "Expected `int`, got `str` - at `$.id`",
    '{"id":1,"total":1.005}': "Expected `decimal(5,2)` - at `$.total`",
    _NEEDED + ',"home":{}}': "missing required field `street` - at `$.home`",
    _NEEDED + ',"home":{"street":null}}': "got `null` - at `$.home.street`",
    _NEEDED + ',"home":{"street":1}}': "got `int` - at `$.home.street`",
    _NEEDED + ',"home":"x"}': "got `str` - at `$.home`",
    _NEEDED + ',"home":{"street":"x","at":"2026-01-31T12:00:00"}}': "with a timezone component - at"
    " `$.home.at`",
    _NEEDED + ',"home":{"street":"x","at":"0001-01-01T00:00:00+00:01"}}': "Expected `struct<street:"
    "string,at:timestamp>` - at `$.home`",
    _NEEDED + ',"lines":[null]}': "got `null` - at `$.lines[0]`",
    _NEEDED + ',"lines":[{"sku":"a","price":1},7]}': "got `int` - at `$.lines[1]`",
    _NEEDED + ',"lines":[{"sku":"a"},{"sku":null,"price":1}]}': "field `price` - at `$.lines[0]`",
    _NEEDED + ',"lines":[{"sku":"a","price":null}]}': "got `null` - at `$.lines[0].price`",
    _NEEDED + ',"lines":[{"sku":"a","price":"NaN"}]}': " - at `$.lines`",
    _NEEDED + ',"tags":{"a":null}}': "got `null` - at `$.tags[...]`",
    _NEEDED + ',"tags":{"a":{}}}': "field `n` - at `$.tags[...]`",
    _NEEDED + ',"tags":{"a":{"n":2147483648}}}': " - at `$.tags[...].n`",
}

_ODD_NAMES = fields(**{"e.f": INT64, "": INT64, "ü`": INT64})
OTHERS = [
    Case(_ODD_NAMES, r'{"e.f":2,"":3,"\u00fc`":4}', {"e.f": 2, "": 3, "ü`": 4}),
    Case(fields(id=INT64, ID=INT64), '{"ID":2,"id":1}', {"id": 1, "ID": 2}),
    Case(
        fields(x=LOCAL),
        '{"x":"2026-01-31T12:00:00Z"}',
        reason="with no timezone component - at `$.x`",
    ),
    Case(
        fields(x=INSTANT),
        '{"x":"2026-01-31 12:00:00"}',
        reason="with a timezone component - at `$.x`",
    ),
]


def cases() -> Iterator[Case]:
    """Yields all of them."""
    for data_type, taken in TAKEN:
        for text, value in taken.items():
            yield Case(fields(x=data_type), f'{{"x":{text}}}', {"x": value})
    for data_type, refused in REFUSED:
        for text in refused:
            yield Case(fields(x=data_type), f'{{"x":{text}}}', reason="`$.x")
    for schema, documents in ((_PLAIN, DOCUMENTS), (_ORDER, ORDERS)):
        for payload, expected in documents.items():
            if isinstance(expected, str):
                yield Case(schema, payload, reason=expected)
            else:
                yield Case(schema, payload, expected)
    yield from OTHERS
