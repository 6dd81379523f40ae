"""The strict reader of what `pgque.capture` publishes: docs/capture.md."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from pgque_dagster.client import InvalidArgument
from pgque_dagster.spark.payload.changes import ChangeFormat, MissingColumns
from pgque_dagster.spark.payload.parsing import Parsed
from tests.spark.payload.payload_batches import shown
from tests.spark.payload.payload_values import INSTANT, INT32, LOCAL, STRING, fields
from tests.spark.payload.row_values import REFUSED, TAKEN

ID_AND_NOTE = fields(id=INT32, note=STRING)

# ev_type and ev_data.
Event = tuple[str | None, str | None]


def parse(
    schema: t.StructType,
    events: list[Event],
    key: tuple[str, ...] = ("id",),
    missing: MissingColumns = "malformed",
) -> Parsed:
    batch = pa.record_batch(
        {
            "ev_type": pa.array([kind for kind, _ in events], pa.string()),
            "ev_data": pa.array([row for _, row in events], pa.string()),
            "ev_extra1": pa.array(["public.t"] * len(events), pa.string()),
        }
    )
    return ChangeFormat(schema, key, missing).parser()(batch)


def read(
    schema: t.StructType, events: list[Event], missing: MissingColumns = "malformed"
) -> list[dict[str, Any] | str | None]:
    """The row or the reason of each."""
    parsed = parse(schema, events, missing=missing)
    found = zip(parsed.columns[3].to_pylist(), parsed.reasons.to_pylist(), strict=True)
    return [reason or row for row, reason in found]


def row_of(value: Any) -> dict[str, Any]:
    return {"id": 1, "v": value}


def test_values_are_read_exactly_or_are_malformed() -> None:
    for data_type, taken in TAKEN:
        schema = fields(id=INT32, v=data_type)
        events: list[Event] = [("insert", json.dumps(row_of(value))) for value in taken]
        expected = [{"id": 1, "v": value} for value in taken.values()]

        assert shown(read(schema, events * 2)) == shown(expected * 2)
        assert shown([read(schema, [event])[0] for event in events]) == shown(expected)
        misfit: Event = ("insert", '{"id":1,"v":[]}')
        assert shown(read(schema, [misfit, *events])[1:]) == shown(expected)
    for data_type, refused in REFUSED:
        events = [("insert", json.dumps(row_of(value))) for value in refused]
        for value, reason in zip(refused, read(fields(id=INT32, v=data_type), events), strict=True):
            assert str(reason).endswith("`$.v`"), (data_type, value, reason)


NEEDED = t.StructType([*ID_AND_NOTE, t.StructField("needed", INT32, False)])
NOON = "2026-01-31T12:00:00"
ODD_NAMES = {name: nr for nr, name in enumerate(["id", "a b", "ü&=+%", "x.y", "`", "ID", "a,b"])}
ALL_NULL = {"id": 1, "note": None}
MISSING = "Object missing required field `{}`".format
# An operation, a row, the schema, what a missing column is, and what is read.
ROWS: list[tuple[str, dict[str, Any], t.StructType, MissingColumns, dict[str, Any] | str]] = [
    # A time is read with a zone or without one, as the type has it.
    ("insert", row_of(NOON + "Z"), fields(id=INT32, v=LOCAL), "malformed",
     "Expected `datetime` with no timezone component - at `$.v`"),
    ("insert", row_of(NOON), fields(id=INT32, v=INSTANT), "malformed",
     "Expected `datetime` with a timezone component - at `$.v`"),
    # Null is null, and an empty text is not. Booleans in a text are as PostgreSQL prints them.
    ("insert", {"id": 1, "note": None}, ID_AND_NOTE, "malformed", ALL_NULL),
    ("insert", {"id": 2, "note": ""}, ID_AND_NOTE, "malformed", {"id": 2, "note": ""}),
    ("insert", {"id": 2, "note": True}, ID_AND_NOTE, "malformed", {"id": 2, "note": "t"}),
    ("insert", {"id": None, "note": ""}, ID_AND_NOTE, "malformed",
     "Expected `int`, got `null` - at `$.id`"),
    # A missing column is malformed, or null where it is asked for and may be.
    ("insert", {"id": 1}, ID_AND_NOTE, "malformed", MISSING("note")),
    ("update", {"id": 1}, ID_AND_NOTE, "malformed", MISSING("note")),
    ("update", {"id": 1}, ID_AND_NOTE, "null", ALL_NULL),
    ("update", {"note": "x"}, ID_AND_NOTE, "null", MISSING("id")),
    ("update", {"id": 1}, NEEDED, "null", MISSING("needed")),
    # A delete needs its key alone.
    ("delete", {"id": 1}, NEEDED, "malformed", {**ALL_NULL, "needed": None}),
    ("delete", {"note": "x", "needed": 1}, NEEDED, "malformed", MISSING("id")),
    # Names are taken literally.
    ("insert", ODD_NAMES, fields(**dict.fromkeys(ODD_NAMES, INT32)), "malformed", ODD_NAMES),
]  # fmt: skip


def test_a_row_is_read_by_its_operation_and_the_schema() -> None:
    for operation, row, schema, missing, expected in ROWS:
        assert read(schema, [(operation, json.dumps(row))], missing) == [expected], row


def test_what_capture_does_not_publish_is_malformed() -> None:
    row = '{"id":1,"note":"x"}'
    for kind in (None, "", "default", "I:id", "INSERT", '{"op":"INSERT"}'):
        assert read(ID_AND_NOTE, [(kind, row)]) == ["ev_type is not a change of a table"]
    for text in (None, "", row + " x", "{'id':1}", '{"id":1,"note":NaN}', "[]"):
        assert isinstance(read(ID_AND_NOTE, [("insert", text)])[0], str), text


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_each_text_is_read_as_it_was_encoded(text: str) -> None:
    event = "insert", json.dumps({"id": 1, "note": text})

    assert read(ID_AND_NOTE, [event]) == [{"id": 1, "note": text}]


def test_a_truncate_has_neither_key_nor_row_and_nor_has_a_malformed_event() -> None:
    row = '{"id":1,"note":null}'

    parsed = parse(ID_AND_NOTE, [("truncate", ""), ("insert", row), ("insert", "%"), (None, row)])

    operations, tables, keys, found = (column.to_pylist() for column in parsed.columns)
    assert operations == ["truncate", "insert", "insert", None]
    assert tables == ["public.t"] * 4
    assert keys == [None, {"id": 1}, None, None]
    assert found == [None, {"id": 1, "note": None}, None, None]
    assert [reason is None for reason in parsed.reasons.to_pylist()] == [True, True, False, False]


def test_no_events_are_no_rows() -> None:
    assert read(ID_AND_NOTE, []) == []


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (fields(id=INT32, v=t.ArrayType(t.ArrayType(STRING))), "v is of type array<array<string>>"),
        (fields(id=INT32, gap=t.DayTimeIntervalType()), "gap is of type interval day to second"),
        (t.StructType([t.StructField("id", INT32)] * 2), "id twice"),
        (fields(id=INT32, **{"b\\s": INT32}), "quote, backslash or control"),
    ],
)
def test_a_schema_that_no_value_is_read_as_is_refused(schema: t.StructType, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        ChangeFormat(schema, ["id"], "malformed")
