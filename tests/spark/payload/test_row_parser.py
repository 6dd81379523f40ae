"""The strict reader of what jsontriga and logutriga publish: docs/triggers.md."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

from pgque_dagster.client import InvalidArgument
from pgque_dagster.spark.payload.row_parser import ChangeParser, MissingColumns
from pgque_dagster.spark.payload.row_parser.values import value_reader
from tests.spark.payload.payload_values import BOOLEAN, DATE, INSTANT, INT32, LOCAL, STRING, fields
from tests.spark.payload.row_values import REFUSED, TAKEN
from tests.spark.payload.test_json_parser import DATES, NUMBERS, TIMES, shown

FORMATS = ["json", "url"]
JSON_TYPE = '{{"op":"{}","table":["public","t"],"pkey":["id"]}}'.format
ID_AND_NOTE = fields(id=INT32, note=STRING)

# A row of the event: (ev_type, ev_data).
Event = tuple[str | None, str | None]


def as_event(form: str, operation: str, row: dict[str, Any]) -> Event:
    """What the trigger makes of texts."""
    if form == "json":
        return JSON_TYPE(operation.upper()), json.dumps(row)
    pairs = (
        quote_plus(name) + ("" if value is None else "=" + quote_plus(value))
        for name, value in row.items()
    )
    return f"{operation[0].upper()}:id", "&".join(pairs)


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
        for row, reason in zip(parsed.rows.to_pylist(), reasons, strict=True)
    ]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("data_type", "texts"), TAKEN, ids=[data_type.simpleString() for data_type, _ in TAKEN]
)
def test_texts_are_read_exactly(form: str, data_type: t.DataType, texts: dict[str, Any]) -> None:
    schema = fields(id=INT32, v=data_type)
    events = [as_event(form, "insert", {"id": "1", "v": text}) for text in texts]
    expected = [({"id": 1, "v": value}, None) for value in texts.values()]

    # A text is read alike beside others and alone, by Arrow and one by one.
    assert shown(read(schema, events * 2)) == shown(expected * 2)
    assert shown([read(schema, [event])[0] for event in events]) == shown(expected)
    doubtful = as_event(form, "insert", {"id": "1", "v": "no such value"})
    assert shown(read(schema, [doubtful, *events])[1:]) == shown(expected)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("data_type", "texts"), REFUSED, ids=[data_type.simpleString() for data_type, _ in REFUSED]
)
def test_other_texts_are_malformed(form: str, data_type: t.DataType, texts: list[str]) -> None:
    schema = fields(id=INT32, v=data_type)
    events = [as_event(form, "insert", {"id": "1", "v": text}) for text in texts]

    reasons = [f"v is no {data_type.simpleString()}"] * len(texts)
    assert read(schema, events) == [(None, reason) for reason in reasons]


@pytest.mark.parametrize("form", FORMATS)
def test_a_time_is_read_with_a_zone_or_without_one_as_the_type_has_it(form: str) -> None:
    with_zone = as_event(form, "insert", {"id": "1", "v": "2026-01-31 12:00:00+00"})
    without = as_event(form, "insert", {"id": "1", "v": "2026-01-31 12:00:00"})

    assert read(fields(id=INT32, v=LOCAL), [with_zone]) == [(None, "v has a time zone")]
    assert read(fields(id=INT32, v=INSTANT), [without]) == [(None, "v has no time zone")]


@pytest.mark.parametrize("form", FORMATS)
def test_null_is_null_and_an_empty_text_is_not(form: str) -> None:
    rows = [{"id": "1", "note": None}, {"id": "2", "note": ""}]

    assert read(ID_AND_NOTE, [as_event(form, "insert", row) for row in rows]) == [
        ({"id": 1, "note": None}, None),
        ({"id": 2, "note": ""}, None),
    ]


def test_numbers_and_booleans_of_json_are_their_texts() -> None:
    row = '{"id":1,"note":true,"v":false}'
    schema = fields(id=INT32, note=STRING, v=BOOLEAN)

    assert read(schema, [(JSON_TYPE("INSERT"), row)]) == [
        ({"id": 1, "note": "t", "v": False}, None)
    ]


@pytest.mark.parametrize("value", ["{}", "[]", '{"a":1}', "[1]"])
def test_an_object_in_place_of_a_value_is_malformed(value: str) -> None:
    event = JSON_TYPE("INSERT"), f'{{"id":1,"note":{value}}}'

    assert read(ID_AND_NOTE, [event]) == [(None, "note is no string")]


@pytest.mark.parametrize("number", ["1.0", "1e0", "1" + "0" * 5000 + "e-5000"])
def test_numbers_of_json_are_read_however_written(number: str) -> None:
    event = JSON_TYPE("INSERT"), f'{{"id":{number},"note":null}}'

    assert read(ID_AND_NOTE, [event]) == [({"id": 1, "note": None}, None)]


@pytest.mark.parametrize("operation", ["insert", "update"])
@pytest.mark.parametrize("form", FORMATS)
def test_a_missing_column_is_malformed(form: str, operation: str) -> None:
    event = as_event(form, operation, {"id": "1"})

    assert read(ID_AND_NOTE, [event]) == [(None, "note is missing")]


@pytest.mark.parametrize("form", FORMATS)
def test_a_missing_column_is_null_when_asked_for(form: str) -> None:
    needed = t.StructType([*ID_AND_NOTE, t.StructField("needed", INT32, False)])
    event = as_event(form, "update", {"id": "1"})
    without_key = as_event(form, "update", {"note": "x"})

    assert read(ID_AND_NOTE, [event], missing="null") == [({"id": 1, "note": None}, None)]
    assert read(ID_AND_NOTE, [without_key], missing="null") == [(None, "id is missing")]
    assert read(needed, [event], missing="null") == [(None, "needed is missing")]


@pytest.mark.parametrize("form", FORMATS)
def test_a_delete_needs_its_key_alone(form: str) -> None:
    schema = t.StructType([*ID_AND_NOTE, t.StructField("needed", INT32, False)])
    event = as_event(form, "delete", {"id": "1"})
    without_key = as_event(form, "delete", {"note": "x", "needed": "1"})

    assert read(schema, [event]) == [({"id": 1, "note": None, "needed": None}, None)]
    assert read(schema, [without_key]) == [(None, "id is missing")]


@pytest.mark.parametrize("form", FORMATS)
def test_nulls_where_none_may_be_and_all_misfits_are_named(form: str) -> None:
    schema = t.StructType(
        [*ID_AND_NOTE, t.StructField("day", DATE, False), t.StructField("n", INT32)]
    )
    event = as_event(form, "insert", {"id": None, "note": "x", "day": None, "n": "x"})

    assert read(schema, [event]) == [(None, "id is null, day is null, n is no int")]


@pytest.mark.parametrize(
    ("types", "reason"),
    [
        (["I:id", JSON_TYPE("INSERT"), "I:", '{"op":"INSERT","table":["public","t"]}'], None),
        (["I:number", JSON_TYPE("INSERT").replace("id", "number")], "the event's key is number"),
        (["I:region,id"], "the event's key is region,id"),
        (
            [None, "", "default", "I", "X:id", "R:id", "i:id", "{", "{}", '{"op":"insert"}',
             '{"op":["INSERT"]}', '{"op":"INSERT","pkey":"id"}', '{"op":"INSERT","table":[1]}',
             JSON_TYPE("INSERT") + "x", "{'op':'INSERT'}"],
            "ev_type is not of jsontriga or logutriga",
        ),
    ],
)  # fmt: skip
def test_the_types_operation_and_key_must_fit(types: list[str | None], reason: str | None) -> None:
    for ev_type in types:
        is_json = (ev_type or "").startswith("{")
        event = ev_type, '{"id":1,"note":"x"}' if is_json else "id=1&note=x"

        expected = (None, reason) if reason else ({"id": 1, "note": "x"}, None)
        assert read(ID_AND_NOTE, [event]) == [expected], ev_type


def test_a_key_of_several_columns_may_be_named_in_any_order() -> None:
    schema = fields(a=INT32, b=INT32)

    assert read(schema, [("I:b,a", "a=1&b=2")], ("a", "b")) == [({"a": 1, "b": 2}, None)]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (('{"op":"INSERT","pkey":["a,b"]}', '{"a,b":1,"a":5,"b":5}'),
         'the event\'s key is ["a,b"]'),
        (("I:a,b", "a%2cb=1&a=5&b=5"), "the event's key is a,b, and a column is named a,b"),
        (("I:a,b", "a=5&b=5&%61%2C%62"), "the event's key is a,b, and a column is named a,b"),
    ],
)  # fmt: skip
def test_a_key_column_with_a_comma_in_its_name_is_not_taken_for_two(
    event: Event, reason: str
) -> None:
    assert read(fields(a=INT32, b=INT32), [event], ("a", "b")) == [(None, reason)]


def test_a_comma_in_the_name_of_another_column_or_in_a_value_does_not_matter() -> None:
    event = "I:a,b", "a=1&b=2%2c&c%2cd=x&a%2cb%2cc=y&%2c=z"

    assert read(fields(a=INT32, b=STRING), [event], ("a", "b")) == [({"a": 1, "b": "2,"}, None)]


def test_of_a_key_column_with_a_comma_in_its_name_jsontriga_alone_tells() -> None:
    schema = fields(**{"a,b": INT32})
    json_event = '{"op":"INSERT","pkey":["a,b"]}', '{"a,b":1}'
    url_event = "I:a,b", "a%2cb=1"

    assert read(schema, [json_event, url_event], ("a,b",)) == [
        ({"a,b": 1}, None),
        (None, "the event's key is a,b, and a column is named a,b"),
    ]


PEAK_OF_A_ROW = """
from urllib.parse import quote_plus

from pgque_dagster.spark.payload.row_parser.documents import RowDecoder

value = {value!r} * 3_000_000
text = "id=1&v=" + quote_plus(value)


def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


with open("/proc/self/clear_refs", "w") as marks:
    marks.write("5")
before = peak()
assert RowDecoder(["id", "v"]).decode(text, is_json=False) == ["1", value]
print((peak() - before) * 1024 / len(text))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells of the peak")
@pytest.mark.parametrize("value", ["a", "é", "a b,"])
def test_a_large_row_of_logutriga_is_read_in_a_few_times_its_size(value: str) -> None:
    code = PEAK_OF_A_ROW.format(value=value)

    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)

    assert run.returncode == 0, run.stderr
    assert float(run.stdout) < 10


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_each_text_is_read_as_it_was_encoded(text: str) -> None:
    # Python alone leaves ~ as it is.
    encoded = quote_plus(text).replace("~", "%7e")

    assert read(ID_AND_NOTE, [("I:id", f"id=1&note={encoded}")]) == [
        ({"id": 1, "note": text}, None)
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *((text, "no url-encoded row") for text in (
            None, "id=1&", "&id=1", "=1", "%zz=1", "id=%4", "id=1&note=%ff", "id=1&note=a=b",
            "id=1&&note=a", "&", "=", "id=1&=a", "id=1&note=%4", "id=1&note=%4&", "id=1&note=%%41",
            "id=1&note=\u00e9", "id=1&note=a b", "id=1\n",
        )),
        ("id=1&id=2", "a column is there twice"),
        ("id=1&%69d=2", "a column is there twice"), ("", "id is missing, note is missing"),
    ],
)  # fmt: skip
def test_what_is_no_url_encoded_row_is_malformed(text: str | None, reason: str) -> None:
    assert read(ID_AND_NOTE, [("I:id", text)]) == [(None, reason)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "no JSON"), ("", "no JSON"), ('{"id":1} x', "no JSON"), ("{'id':1}", "no JSON"),
        ('{"id":1,"note":NaN}', "no JSON"), ("[]", "JSON, but no object"),
        ('{"id":1,"more":"\\ud800"}', "half of a surrogate pair stands alone"),
        ("{}", "id is missing, note is missing"),
    ],
)  # fmt: skip
def test_what_is_no_json_row_is_malformed(text: str | None, reason: str) -> None:
    assert read(ID_AND_NOTE, [(JSON_TYPE("INSERT"), text)]) == [(None, reason)]


@pytest.mark.parametrize("form", FORMATS)
def test_names_are_taken_literally(form: str) -> None:
    names = ["id", "a b", 'q"', "b\\s", "ü&=+%", "x.y", "`", "ID"]
    row = {name: str(nr) for nr, name in enumerate(names)}
    schema = fields(**dict.fromkeys(names, INT32))

    expected = {name: nr for nr, name in enumerate(names)}
    assert read(schema, [as_event(form, "insert", row)]) == [(expected, None)]


def test_a_truncate_has_neither_key_nor_row() -> None:
    types = pa.array(["R", JSON_TYPE("TRUNCATE"), "I:id"])
    rows, tables = pa.array(["", "{}", "id=1&note"]), pa.array(["a.b", None, "c.d"])

    parsed = ChangeParser(ID_AND_NOTE, ["id"], "malformed").parse(types, rows, tables)

    assert parsed.operations.to_pylist() == ["truncate", "truncate", "insert"]
    assert parsed.tables.to_pylist() == ["a.b", "public.t", "c.d"]
    assert parsed.keys.to_pylist() == [None, None, {"id": 1}]
    assert parsed.rows.to_pylist() == [None, None, {"id": 1, "note": None}]
    assert parsed.reasons.to_pylist() == [None, None, None]


def test_of_a_malformed_event_what_fits_is_read() -> None:
    schema = fields(id=INT32, day=DATE, note=STRING)
    types, rows = pa.array(["I:id", "I:id"]), pa.array(["id=1&day=x&note=a", "%"])

    parsed = ChangeParser(schema, ["id"], "malformed").parse(types, rows, types)

    assert parsed.rows.to_pylist() == [{"id": 1, "day": None, "note": "a"}, None]


def test_no_events_are_no_rows() -> None:
    assert read(ID_AND_NOTE, []) == []


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (fields(id=INT32, tags=t.ArrayType(STRING)), "tags is of type array<string>"),
        (fields(id=INT32, gap=t.DayTimeIntervalType()), "gap is of type interval day to second"),
        (t.StructType([t.StructField("id", INT32)] * 2), "id twice"),
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
        reader = value_reader(data_type, True, "v")
        column, doubts = reader.column(texts)
        for n, value in enumerate(column.to_pylist()):
            problems: dict[str, None] = {}
            exact = reader.exact(texts[n], "v", problems)
            alone = pa.array([exact], column.type).to_pylist()[0]
            if doubts is None or not doubts[n]:
                assert not problems, (data_type, texts[n])
                assert shown(value) == shown(alone), (data_type, texts[n])
