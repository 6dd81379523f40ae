"""The strict parser of payloads: docs/payloads.md, over a corpus and over generated payloads."""

import json
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

from pgque_dagster.client import InvalidArgument
from pgque_dagster.spark.payload.json_parser import PayloadParser
from tests.spark.payload import payload_values as values
from tests.spark.payload.payload_batches import shown
from tests.spark.payload.payload_corpus import cases
from tests.spark.payload.payload_oracle import read

CASES = list(cases())


def parsed(schema: t.StructType, payloads: Sequence[str | None]) -> list[tuple[Any, str | None]]:
    """The values or the reason of each; what is left of a malformed payload is not looked at."""
    read = PayloadParser(schema).parse(pa.array(payloads, pa.string()))
    assert all(len(column) == len(payloads) for column in read.columns)
    rows = [dict(zip(schema.names, row, strict=True)) for row in zip(*read.columns, strict=True)]
    return [
        (None, reason) if reason else ({k: v.as_py() for k, v in row.items()}, None)
        for row, reason in zip(rows, read.reasons.to_pylist(), strict=True)
    ]


def test_each_payload_is_read_as_the_corpus_says_by_the_parser_and_the_oracle() -> None:
    wrong = []
    for case in CASES:
        expected = shown((case.values, case.reason))
        found = [parsed(case.schema, [case.payload])[0]]
        if len(case.payload) < 100_000:  # The oracle, by the standard library, cannot go so deep.
            found.append(read(case.schema, case.payload))
        # With a byte order mark, msgspec refuses a payload, so the exact way reads it.
        if case.values is not None and not case.payload.startswith("\ufeff"):
            found += parsed(case.schema, ["\ufeff" + case.payload])
        wrong += [(case, shown(each)) for each in found if shown(each) != expected]
    assert wrong == []


def test_payloads_read_together_are_read_as_each_alone() -> None:
    for schema in {case.schema.json(): case.schema for case in CASES}.values():
        some = [case for case in CASES if case.schema == schema]

        results = parsed(schema, [case.payload for case in some] * 3)

        expected = [(case.values, case.reason) for case in some] * 3
        assert shown(results) == shown(expected)


def test_null_is_no_json_and_no_payloads_are_no_rows() -> None:
    assert parsed(values.fields(x=values.INT64), [None]) == [(None, "no JSON")]
    assert parsed(values.fields(x=t.ArrayType(values.INT64)), []) == []


def test_a_slice_of_a_column_is_read_where_it_begins() -> None:
    texts = pa.array(['{"x":1}', '{"x":2}', "x", '{"x":4}'])

    read = PayloadParser(values.fields(x=values.INT64)).parse(texts[1:])

    assert read.columns[0].to_pylist() == [2, None, 4]
    assert read.reasons.to_pylist() == [None, "no JSON", None]


def test_fields_of_a_malformed_payload_that_fit_are_read() -> None:
    schema = values.fields(x=values.INT64, y=t.ArrayType(values.INT64), z=values.STRING)

    read = PayloadParser(schema).parse(pa.array(['{"x":1,"y":[2,"three"],"z":"a"}']))

    assert [column.to_pylist() for column in read.columns] == [[1], [None], ["a"]]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (values.fields(x=t.DayTimeIntervalType()), "x is of type interval day to second"),
        (values.fields(x=t.ArrayType(t.VariantType())), r"x\[\] is of type variant"),
        (values.fields(x=t.MapType(t.LongType(), t.LongType())), "x is of type map<bigint,bigint>"),
        (values.fields(x=values.fields(y=t.NullType())), r"x\.y is of type void"),
        (t.StructType([t.StructField("x", t.LongType())] * 2), "x twice"),
        (values.fields(x=values.fields(**{'a"b': t.LongType()})), "quote, backslash or control"),
    ],
)
def test_a_schema_that_json_has_no_values_for_is_refused(schema: t.StructType, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        PayloadParser(schema)


# Generated: scalars near the borders, in schemas of all types, and documents with broken places.
SCALAR_TYPES = [
    values.BOOLEAN, values.INT8, values.INT16, values.INT32, values.INT64, values.DOUBLE,
    values.FLOAT, values.MONEY, values.WHOLE, values.SHARE, values.WIDE, values.STRING,
    values.BINARY, values.DATE, values.INSTANT, values.LOCAL,
]  # fmt: skip
DIGITS = st.text("0123456789", min_size=1, max_size=40)
NUMBERS = st.one_of(
    st.builds(
        lambda sign, whole, fraction, exponent: (
            sign + (whole.lstrip("0") or "0") + fraction + exponent
        ),
        st.sampled_from(["", "-"]),
        st.one_of(DIGITS, st.sampled_from("0123456789")),
        st.one_of(st.just(""), DIGITS.map(".{}".format)),
        st.one_of(st.just(""), st.integers(-340, 340).map("e{}".format)),
    ),
    st.sampled_from([2**n + d for n in (7, 15, 24, 31, 53, 63, 127, 128) for d in (-1, 0, 1)])
    .flatmap(lambda n: st.sampled_from([n, -n]))
    .map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(json.dumps),
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(json.dumps),
)
TIMES = st.builds(
    "{:04}-{:02}-{:02}{}{:02}:{:02}{}{}{}".format,
    st.sampled_from([0, 1, 2, 1582, 1900, 2000, 2024, 2026, 9998, 9999]),
    st.integers(0, 13),
    st.sampled_from([0, 1, 5, 28, 29, 30, 31, 32]),
    st.sampled_from(["T", " ", "t", ""]),
    st.sampled_from([0, 1, 12, 23, 24]),
    st.sampled_from([0, 30, 59, 60]),
    st.sampled_from(["", ":00", ":59", ":60"]),
    st.sampled_from(["", ".1", ".123456", ".1234567", ".123456000", "."]),
    st.sampled_from(["", "Z", "+00:00", "-23:59", "+24:00", "+0530", "-05", "+05:60", "z"]),
)
DATES = st.builds("{:04}-{:02}-{:02}".format, *[st.integers(0, 10_000)], *[st.integers(0, 32)] * 2)
STRINGS = st.one_of(
    st.text(max_size=8),
    NUMBERS,
    TIMES,
    DATES,
    st.text("AZaz09+/=-_", max_size=8),
    st.binary(max_size=6).map(lambda content: b64encode(content).decode()),
)
SCALARS = st.one_of(
    st.sampled_from(["null", "true", "false", "[]", "{}"]), NUMBERS, STRINGS.map(json.dumps)
)


def values_near(data_type: t.DataType) -> st.SearchStrategy[str]:
    """JSON that often fits the type."""
    if isinstance(data_type, t.ArrayType):
        elements = st.lists(values_near(data_type.elementType), max_size=3)
        return st.one_of(elements.map(lambda x: f"[{','.join(x)}]"), SCALARS)
    if isinstance(data_type, t.MapType):
        pairs = st.tuples(st.sampled_from(["a", "b"]), values_near(data_type.valueType))
        return st.one_of(st.lists(pairs, max_size=3).map(as_object), SCALARS)
    if isinstance(data_type, t.StructType):
        names = st.sampled_from(data_type.names)
        pairs = names.flatmap(
            lambda name: st.tuples(st.just(name), values_near(data_type[name].dataType))
        )
        return st.one_of(st.lists(pairs, max_size=4).map(as_object), SCALARS)
    if isinstance(data_type, t.DateType):
        return st.one_of(DATES.map(json.dumps), SCALARS)
    if isinstance(data_type, t.TimestampType | t.TimestampNTZType):
        return st.one_of(TIMES.map(json.dumps), SCALARS)
    if isinstance(data_type, t.NumericType):
        return st.one_of(NUMBERS, SCALARS)
    return SCALARS


def as_object(pairs: Sequence[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in pairs) + "}"


NESTED_TYPES = st.recursive(
    st.sampled_from(SCALAR_TYPES),
    lambda inner: st.one_of(
        st.builds(t.ArrayType, inner, st.booleans()),
        st.builds(t.MapType, st.just(values.STRING), inner, st.booleans()),
        st.lists(st.tuples(inner, st.booleans()), min_size=1, max_size=3).map(
            lambda kinds: t.StructType([t.StructField(f"f{n}", *k) for n, k in enumerate(kinds)])
        ),
    ),
    max_leaves=4,
)
SCHEMAS_AND_PAYLOADS = st.builds(
    lambda data_type, nullable: t.StructType([t.StructField("x", data_type, nullable)]),
    NESTED_TYPES,
    st.booleans(),
).flatmap(lambda s: st.tuples(st.just(s), st.lists(values_near(s), min_size=1, max_size=6)))


@settings(max_examples=600, deadline=None)
@given(SCHEMAS_AND_PAYLOADS)
def test_generated_payloads_are_read_as_by_the_oracle(
    generated: tuple[t.StructType, list[str]],
) -> None:
    schema, payloads = generated

    assert shown(parsed(schema, payloads)) == shown([read(schema, x) for x in payloads])


DOCUMENT = r' {"x":-12.5e+3,"s":"a\u00e9\ud83d\ude00\n","more":[true,false,null,{"y":"z\\"}]} '
PIECES = st.sampled_from([*"{}[]:,\"\\+-.01eEuntrfal \t\n\0\ufeff'/é", "\\ud800", "null"])


@settings(max_examples=1500, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, len(DOCUMENT)), st.integers(0, 3), st.one_of(st.just(""), PIECES)),
        max_size=3,
    )
)
@example([(0, 0, "\ufeff")])
def test_broken_documents_are_read_as_by_the_oracle(edits: list[tuple[int, int, str]]) -> None:
    payload = DOCUMENT
    for position, deleted, inserted in edits:
        payload = payload[:position] + inserted + payload[position + deleted :]
    schema = values.fields(x=values.INT64, s=values.STRING)

    assert shown(parsed(schema, [payload])) == shown([read(schema, payload)])
