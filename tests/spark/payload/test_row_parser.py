"""The strict reader of what captured tables and jsontriga publish: docs/triggers.md."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

from pgque_dagster.client import InvalidArgument
from pgque_dagster.spark.payload.row_parser import ChangeParser, MissingColumns
from pgque_dagster.spark.payload.types import printed_reader
from tests.spark.payload.payload_values import DATE, INSTANT, INT32, LOCAL, STRING, fields
from tests.spark.payload.row_values import REFUSED, TAKEN
from tests.spark.payload.test_json_parser import DATES, NUMBERS, TIMES, shown

FORMATS = ["jsontriga", "capture"]
JSON_TYPE = '{{"op":"{}","table":["public","t"],"pkey":["id"]}}'.format
ID_AND_NOTE = fields(id=INT32, note=STRING)

# A row of the event: (ev_type, ev_data).
Event = tuple[str | None, str | None]


def as_event(form: str, operation: str, row: dict[str, Any]) -> Event:
    """What the trigger makes of texts."""
    ev_type = JSON_TYPE(operation.upper()) if form == "jsontriga" else operation
    return ev_type, json.dumps(row)


def read(
    schema: t.StructType,
    events: list[Event],
    key: tuple[str, ...] = ("id",),
    missing: MissingColumns = "malformed",
) -> list[tuple[dict[str, Any] | None, str | None]]:
    """The row or the reason of each."""
    types, rows = (pa.array([event[n] for event in events], pa.string()) for n in (0, 1))
    tables = pa.array(["public.t"] * len(events), pa.string())
    parsed = ChangeParser(schema, key, missing).parse(types, rows, tables)
    reasons = parsed.reasons.to_pylist()
    return [
        (None, reason) if reason else (row, None)
        for row, reason in zip(parsed.columns[3].to_pylist(), reasons, strict=True)
    ]


def row_of(text: str | None) -> dict[str, str | None]:
    return {"id": "1", "v": text}


@pytest.mark.parametrize("form", FORMATS)
def test_texts_are_read_exactly_or_are_malformed(form: str) -> None:
    for data_type, texts in TAKEN:
        schema = fields(id=INT32, v=data_type)
        events = [as_event(form, "insert", row_of(text)) for text in texts]
        expected = [({"id": 1, "v": value}, None) for value in texts.values()]

        # A text is read alike beside others and alone, by Arrow and one by one.
        assert shown(read(schema, events * 2)) == shown(expected * 2)
        assert shown([read(schema, [event])[0] for event in events]) == shown(expected)
        doubtful = as_event(form, "insert", row_of("no such value"))
        assert shown(read(schema, [doubtful, *events])[1:]) == shown(expected)
    for data_type, refused in REFUSED:
        events = [as_event(form, "insert", row_of(text)) for text in refused]
        reason = f"v is no {data_type.simpleString()}"
        assert read(fields(id=INT32, v=data_type), events) == [(None, reason)] * len(refused)


NEEDED = t.StructType([*ID_AND_NOTE, t.StructField("needed", INT32, False)])
DAYS = t.StructType([*ID_AND_NOTE, t.StructField("day", DATE, False), t.StructField("n", INT32)])
NOON = "2026-01-31 12:00:00"
ODD_NAMES = {name: nr for nr, name in enumerate(["id", "a b", "ü&=+%", "x.y", "`", "ID"])}
ALL_NULL = {"id": 1, "note": None}
# An operation, the texts of a row, the schema, what a missing column is, and what is read.
ROWS: list[tuple[str, dict[str, Any], t.StructType, MissingColumns, dict[str, Any] | str]] = [
    # A time is read with a zone or without one, as the type has it.
    ("insert", row_of(NOON + "+00"), fields(id=INT32, v=LOCAL), "malformed", "v has a time zone"),
    ("insert", row_of(NOON), fields(id=INT32, v=INSTANT), "malformed", "v has no time zone"),
    # Null is null, and an empty text is not.
    ("insert", {"id": "1", "note": None}, ID_AND_NOTE, "malformed", ALL_NULL),
    ("insert", {"id": "2", "note": ""}, ID_AND_NOTE, "malformed", {"id": 2, "note": ""}),
    # A missing column is malformed, or null where it is asked for and may be.
    ("insert", {"id": "1"}, ID_AND_NOTE, "malformed", "note is missing"),
    ("update", {"id": "1"}, ID_AND_NOTE, "malformed", "note is missing"),
    ("update", {"id": "1"}, ID_AND_NOTE, "null", ALL_NULL),
    ("update", {"note": "x"}, ID_AND_NOTE, "null", "id is missing"),
    ("update", {"id": "1"}, NEEDED, "null", "needed is missing"),
    # A delete needs its key alone.
    ("delete", {"id": "1"}, NEEDED, "malformed", {**ALL_NULL, "needed": None}),
    ("delete", {"note": "x", "needed": "1"}, NEEDED, "malformed", "id is missing"),
    # All misfits are named.
    ("insert", {"id": None, "note": "x", "day": None, "n": "x"}, DAYS, "malformed",
     "id is null, day is null, n is no int"),
    # Names are taken literally.
    ("insert", {name: str(nr) for name, nr in ODD_NAMES.items()},
     fields(**dict.fromkeys(ODD_NAMES, INT32)), "malformed", ODD_NAMES),
]  # fmt: skip


@pytest.mark.parametrize("form", FORMATS)
def test_a_row_is_read_by_its_operation_and_the_schema(form: str) -> None:
    for operation, row, schema, missing, expected in ROWS:
        found = read(schema, [as_event(form, operation, row)], missing=missing)
        assert found == [(None, expected) if isinstance(expected, str) else (expected, None)], row


JSON_ROWS: dict[str | None, dict[str, Any] | str] = {
    # Numbers and booleans are their texts, however they are written.
    '{"id":1,"note":true}': {"id": 1, "note": "t"},
    **{
        f'{{"id":{number},"note":null}}': ALL_NULL
        for number in ("1.0", "1e0", "1" + "0" * 5000 + "e-5000")
    },
    **{
        f'{{"id":1,"note":{value}}}': "note is no string"
        for value in ("{}", "[]", '{"a":1}', "[1]")
    },
    **dict.fromkeys(
        (
            None,
            "",
            '{"id":1} x',
            "{'id':1}",
            '{"id":1,"note":NaN}',
        ),
        "no JSON",
    ),
    "[]": "JSON, but no object",
    '{"id":1,"more":"\\ud800"}': "no JSON",
    "{}": "id is missing, note is missing",
}


def test_a_row_that_no_trigger_made_is_malformed() -> None:
    for ev_type in (JSON_TYPE("INSERT"), "insert"):
        for text, expected in JSON_ROWS.items():
            result = (None, expected) if isinstance(expected, str) else (expected, None)
            assert read(ID_AND_NOTE, [(ev_type, text)]) == [result], text


TYPES: dict[str | None, str | None] = {
    **dict.fromkeys(
        ("insert", JSON_TYPE("INSERT"), '{"op":"INSERT","table":["public","t"]}'), None
    ),
    JSON_TYPE("INSERT").replace("id", "number"): "the event's key is number",
    JSON_TYPE("INSERT").replace('"id"', '"region","id"'): "the event's key is region,id",
    **dict.fromkeys(
        (
            None, "", "default", "I", "I:id", "R", "INSERT", "{", "{}", '{"op":"insert"}',
            '{"op":["INSERT"]}', '{"op":"INSERT","pkey":"id"}', '{"op":"INSERT","table":[1]}',
            JSON_TYPE("INSERT") + "x", "{'op':'INSERT'}",
        ),
        "ev_type is no change of a table",
    ),
}  # fmt: skip


def test_the_types_operation_and_key_must_fit() -> None:
    for ev_type, reason in TYPES.items():
        event = ev_type, '{"id":1,"note":"x"}'

        expected = (None, reason) if reason else ({"id": 1, "note": "x"}, None)
        assert read(ID_AND_NOTE, [event]) == [expected], ev_type


A_AND_B = fields(a=INT32, b=STRING)
COMMA = fields(**{"a,b": INT32})


@pytest.mark.parametrize(
    ("event", "schema", "key", "expected"),
    [
        (('{"op":"INSERT","pkey":["b","a"]}', '{"a":1,"b":"2"}'), A_AND_B, ("a", "b"),
         {"a": 1, "b": "2"}),
        # A comma in the name of a key column is not taken for two columns.
        (('{"op":"INSERT","pkey":["a,b"]}', '{"a,b":1,"a":5,"b":5}'), A_AND_B, ("a", "b"),
         'the event\'s key is ["a,b"]'),
        (('{"op":"INSERT","pkey":["a,b"]}', '{"a,b":1}'), COMMA, ("a,b",), {"a,b": 1}),
    ],
)  # fmt: skip
def test_a_key_of_several_columns_is_told_from_one_with_a_comma_in_its_name(
    event: Event, schema: t.StructType, key: tuple[str, ...], expected: Any
) -> None:
    result = (None, expected) if isinstance(expected, str) else (expected, None)
    assert read(schema, [event], key) == [result]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_each_text_is_read_as_it_was_encoded(text: str) -> None:
    event = as_event("capture", "insert", {"id": "1", "note": text})

    assert read(ID_AND_NOTE, [event]) == [({"id": 1, "note": text}, None)]


def test_a_truncate_has_neither_key_nor_row() -> None:
    types = pa.array(["truncate", JSON_TYPE("TRUNCATE"), "insert"])
    rows, tables = pa.array(["", "{}", '{"id":1,"note":null}']), pa.array(["a.b", None, "c.d"])

    parsed = ChangeParser(ID_AND_NOTE, ["id"], "malformed").parse(types, rows, tables)

    assert parsed.columns[0].to_pylist() == ["truncate", "truncate", "insert"]
    assert parsed.columns[1].to_pylist() == ["a.b", "public.t", "c.d"]
    assert parsed.columns[2].to_pylist() == [None, None, {"id": 1}]
    assert parsed.columns[3].to_pylist() == [None, None, {"id": 1, "note": None}]
    assert parsed.reasons.to_pylist() == [None, None, None]


def test_of_a_malformed_event_what_fits_is_read() -> None:
    schema = fields(id=INT32, day=DATE, note=STRING)
    types, rows = pa.array(["insert"] * 2), pa.array(['{"id":1,"day":"x","note":"a"}', "%"])

    parsed = ChangeParser(schema, ["id"], "malformed").parse(types, rows, types)

    assert parsed.columns[3].to_pylist() == [{"id": 1, "day": None, "note": "a"}, None]


def test_no_events_are_no_rows() -> None:
    assert read(ID_AND_NOTE, []) == []


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (fields(id=INT32, tags=t.ArrayType(STRING)), "tags is of type array<string>"),
        (fields(id=INT32, gap=t.DayTimeIntervalType()), "gap is of type interval day to second"),
        (t.StructType([t.StructField("id", INT32)] * 2), "id twice"),
        (fields(id=INT32, **{"b\\s": INT32}), "quote, backslash or control"),
    ],
)
def test_a_schema_that_no_value_is_read_as_is_refused(schema: t.StructType, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        ChangeParser(schema, ["id"], "malformed")


TEXTS = st.one_of(
    NUMBERS,
    NUMBERS.map("0{}".format),
    DATES,
    TIMES,
    TIMES.map("{}:07".format),
    st.text("tf-0.9eN\\xa", max_size=6),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=8))
def test_what_arrow_is_sure_of_is_read_alike_one_by_one(texts: list[str]) -> None:
    for data_type, _ in TAKEN:
        reader = printed_reader(data_type, True, "v")
        column, doubts = reader.column(texts)
        for n, value in enumerate(column.to_pylist()):
            problems: dict[str, None] = {}
            exact = reader.fitted(texts[n], "v", problems)
            alone = pa.array([exact], column.type).to_pylist()[0]
            if doubts is None or not doubts[n]:
                assert not problems, (data_type, texts[n])
                assert shown(value) == shown(alone), (data_type, texts[n])
