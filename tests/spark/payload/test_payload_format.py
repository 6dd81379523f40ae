"""The strict parser of payloads: docs/payloads.md, over a corpus."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from pgque_dagster.client import InvalidArgument
from pgque_dagster.spark.payload.parsing import Parsed
from pgque_dagster.spark.payload.payloads import PayloadFormat
from tests.spark.payload import payload_values as values
from tests.spark.payload.payload_batches import fits
from tests.spark.payload.payload_corpus import cases

CASES = list(cases())


def parse(schema: t.StructType, payloads: Sequence[str | None] | pa.Array) -> Parsed:
    events = pa.record_batch({"ev_data": pa.array(payloads, pa.string())})
    return PayloadFormat(schema).parser()(events)


def parsed(
    schema: t.StructType, payloads: Sequence[str | None]
) -> list[tuple[dict[str, Any], str | None]]:
    """The values and the reason of each."""
    read = parse(schema, payloads)
    assert all(len(column) == len(payloads) for column in read.columns)
    rows = [dict(zip(schema.names, row, strict=True)) for row in zip(*read.columns, strict=True)]
    plain = [{name: value.as_py() for name, value in row.items()} for row in rows]
    return list(zip(plain, read.reasons.to_pylist(), strict=True))


def test_each_payload_is_read_as_the_corpus_says() -> None:
    found = [(case, *parsed(case.schema, [case.payload])[0]) for case in CASES]

    assert [case for case in found if not fits(*case)] == []


def test_payloads_read_together_are_read_as_each_alone() -> None:
    for schema in {case.schema.json(): case.schema for case in CASES}.values():
        some = [case for case in CASES if case.schema == schema] * 3

        results = parsed(schema, [case.payload for case in some])

        found = [(case, *result) for case, result in zip(some, results, strict=True)]
        assert [case for case in found if not fits(*case)] == []


def test_null_is_malformed_and_no_payloads_are_no_rows() -> None:
    assert parsed(values.fields(x=values.INT64), [None]) == [({"x": None}, "the payload is null")]
    assert parsed(values.fields(x=t.ArrayType(values.INT64)), []) == []


def test_a_slice_of_a_column_is_read_where_it_begins() -> None:
    texts = pa.array(['{"x":1}', '{"x":2}', "x", '{"x":4}'])

    read = parse(values.fields(x=values.INT64), texts[1:])

    assert read.columns[0].to_pylist() == [2, None, 4]
    assert [reason is None for reason in read.reasons.to_pylist()] == [True, False, True]


def test_a_malformed_payload_has_null_in_all_fields() -> None:
    schema = values.fields(x=values.INT64, y=values.MONEY)

    texts = ['{"x":1,"y":1.5}', '{"x":2,"y":1.005}', '{"x":3,"y":{}}', '{"x":4,"y":2}']
    read = parse(schema, texts)

    assert read.columns[0].to_pylist() == [1, None, None, 4]
    assert read.reasons.to_pylist()[1] == "Expected `decimal(5,2)` - at `$.y`"


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
        PayloadFormat(schema)
