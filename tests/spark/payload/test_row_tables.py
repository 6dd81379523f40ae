"""Tables that change their columns, types and key while they are captured: docs/capture.md."""

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from pgque_dagster.spark.payload.changes import ChangeFormat, MissingColumns
from tests.spark.payload.payload_values import (
    BINARY,
    BOOLEAN,
    DATE,
    INSTANT,
    INT32,
    LOCAL,
    MONEY,
    STRING,
    fields,
)  # fmt: skip
from tests.support.queues.sql import Connection, connect, make_queue, rows
from tests.support.queues.triggers import events_of

CAPTURE = "select pgque.capture('t', 'q')"
TABLE = "create table t (id int primary key, note text)"
SCHEMA = fields(id=INT32, note=STRING)
ANN = {"id": 1, "note": "Ann"}


@pytest.fixture
def db(database_url: str) -> Iterator[Connection]:
    with connect(database_url) as connection:
        make_queue(connection)
        connection.execute(b"set timezone = 'America/New_York'")
        yield connection


def run(db: Connection, *statements: str) -> None:
    for statement in statements:
        db.execute(statement.encode())


def published(db: Connection) -> pa.RecordBatch:
    """The events since the last call."""
    events = events_of(db)
    columns = {"ev_type": "type", "ev_data": "data", "ev_extra1": "extra1"}
    return pa.record_batch(
        {name: pa.array([getattr(x, part) for x in events]) for name, part in columns.items()}
    )


def read(
    events: pa.RecordBatch, schema: t.StructType = SCHEMA, missing: MissingColumns = "malformed"
) -> list[Any]:
    """The row of each event, or the reason why it is malformed."""
    parsed = ChangeFormat(schema, ["id"], missing).parser()(events)
    found = zip(parsed.columns[3].to_pylist(), parsed.reasons.to_pylist(), strict=True)
    return [reason or row for row, reason in found]


GONE = {"id": 1, "note": None}
NOTE_NEEDED = t.StructType([t.StructField("id", INT32), t.StructField("note", STRING, False)])
WIDER = fields(id=INT32, note=STRING, paid=BOOLEAN)
AS_IT_IS = "update t set id = id"
NO_NOTE = "Object missing required field `note`"


class Story(NamedTuple):
    """What happens to a table, and what is read of its events."""

    happens: list[str]
    # By schema and what a missing column is.
    read: list[tuple[t.StructType, MissingColumns, list[Any]]]
    table: str = TABLE


STORIES = {
    **{
        f"a column is {change.split()[3]}ed": Story(
            ["insert into t values (1, 'Ann')", change, AS_IT_IS, "insert into t values (2)",
             "delete from t where id = 1"],
            # The delete has its key.
            [(SCHEMA, "malformed", [ANN, NO_NOTE, NO_NOTE, GONE]),
             (SCHEMA, "null", [ANN, GONE, {"id": 2, "note": None}, GONE])],
        )
        for change in ("alter table t rename note to remark", "alter table t drop note")
    },
    "a column that must not be null is renamed": Story(
        ["alter table t rename note to remark", "insert into t values (1, 'Ann')"],
        [(NOTE_NEEDED, "null", [NO_NOTE])],
    ),
    "a column is added": Story(
        ["insert into t values (1, 'Ann')", "alter table t add paid bool default true", AS_IT_IS],
        [(SCHEMA, "malformed", [ANN, ANN]),
         (WIDER, "malformed", ["Object missing required field `paid`", {**ANN, "paid": True}]),
         (WIDER, "null", [{**ANN, "paid": None}, {**ANN, "paid": True}])],
    ),
    "columns swap their names": Story(
        ["insert into t values (1, 'x', 'y')", "alter table t rename a to c",
         "alter table t rename b to a", "alter table t rename c to b", AS_IT_IS],
        [(fields(id=INT32, a=STRING, b=STRING), "malformed",
          [{"id": 1, "a": "x", "b": "y"}, {"id": 1, "a": "y", "b": "x"}])],
        "create table t (id int primary key, a text, b text)",
    ),
    "the key is renamed": Story(
        ["alter table t rename id to number", "insert into t values (1, 'Ann')"],
        [(SCHEMA, "malformed", ["Object missing required field `id`"])],
    ),
}  # fmt: skip


@pytest.mark.parametrize("story", STORIES)
def test_rows_are_read_by_their_names_or_are_malformed(db: Connection, story: str) -> None:
    happens, readings, sql = STORIES[story]
    run(db, sql, CAPTURE, *happens)

    events = published(db)

    for schema, missing, expected in readings:
        assert read(events, schema, missing) == expected, (schema, missing)


# Type, value, the new type, how the value is converted, the Spark type, and what is read of both.
NOON = datetime(2026, 1, 31, 12)
TYPE_CHANGES: list[tuple[str, str, str, str, t.DataType, Any, Any]] = [
    ("int", "7", "bigint", "v::bigint", INT32, 7, 7),
    ("int", "7", "bigint", "v + 2147483647::bigint", INT32, 7, "`$.v`"),
    ("int", "7", "text", "'x' || v", INT32, 7, "`$.v`"),
    ("int", "7", "numeric", "v + 0.5", INT32, 7, "`$.v`"),
    ("text", "7", "int", "v::int", STRING, "7", "7"),
    ("bool", "t", "text", "v::text", BOOLEAN, True, "`$.v`"),
    ("bool", "t", "int", "v::int", BOOLEAN, True, "`$.v`"),
    ("numeric", "1.5", "numeric", "v + 0.005", MONEY, Decimal("1.50"), "`$.v`"),
    ("numeric", "1.5", "float8", "v", MONEY, Decimal("1.50"), Decimal("1.50")),
    ("numeric", "1.5", "money", "v::money", MONEY, Decimal("1.50"), "`$.v`"),
    ("timestamp", f"{NOON}", "timestamptz", "v", LOCAL, NOON,
     "with no timezone component - at `$.v`"),
    ("timestamptz", f"{NOON}Z", "timestamp", "v", INSTANT, NOON.replace(tzinfo=UTC),
     "with a timezone component - at `$.v`"),
    ("date", "2026-01-31", "timestamp", "v", DATE, NOON.date(), "`$.v`"),
    ("bytea", r"\x00", "text", "'0'", BINARY, b"\0", "`$.v`"),
]  # fmt: skip


def test_after_a_column_got_another_type_its_values_fit_or_are_malformed(db: Connection) -> None:
    for before, literal, after, using, data_type, first, later in TYPE_CHANGES:
        run(
            db,
            "drop table if exists t",
            f"create table t (id int primary key, v {before})",
            CAPTURE,
        )
        run(db, f"insert into t values (1, '{literal}')")
        run(db, f"alter table t alter v type {after} using {using}", "update t set id = id")
        is_reason = str(later).endswith("`$.v`")
        old, new = read(published(db), fields(id=INT32, v=data_type))
        assert old == {"id": 1, "v": first}
        if is_reason:
            assert str(new).endswith(later)
        else:
            assert new == {"id": 1, "v": later}


def test_an_update_shows_the_new_row_with_what_did_not_change(db: Connection) -> None:
    run(db, "create table t (id int primary key, n int, note text)", CAPTURE)
    long = "select string_agg(md5(n::text), '') from generate_series(1, 3000) n"
    run(db, f"insert into t values (1, 1, ({long}))", "update t set n = 2")
    ((note,),) = rows(db, "select note from t where pg_column_size(note) > 2000")

    found = read(published(db), fields(id=INT32, n=INT32, note=STRING))

    assert found == [{"id": 1, "n": 1, "note": note}, {"id": 1, "n": 2, "note": note}]


def test_a_stored_generated_column_is_read(db: Connection) -> None:
    sql = "create table t (id int primary key, note text generated always as ('x' || id) stored)"
    run(db, sql, CAPTURE, "insert into t values (1)")

    assert read(published(db)) == [{"id": 1, "note": "x1"}]
