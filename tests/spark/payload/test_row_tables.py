"""Tables that change their columns, types and key while both triggers publish them.

What comes of it stands in docs/triggers.md.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from pgque_dagster.spark.payload.row_parser import ChangeParser, MissingColumns
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
from tests.support.queues import Connection, connect, make_queue, rows
from tests.support.triggers import attach, take_events

TABLE = "create table t (id int primary key, note text)"
SCHEMA = fields(id=INT32, note=STRING)
ANN = {"id": 1, "note": "Ann"}


@pytest.fixture
def db(database_url: str) -> Iterator[Connection]:
    with connect(database_url) as connection:
        make_queue(connection)
        connection.execute(b"set timezone = 'America/New_York'")
        yield connection


@pytest.fixture
def function() -> str:
    return "jsontriga"


def run(db: Connection, *statements: str) -> None:
    for statement in statements:
        db.execute(statement.encode())


def table(db: Connection, function: str, *arguments: str, sql: str = TABLE) -> None:
    """A table that publishes its changes."""
    run(db, sql)
    attach(db, function, *arguments)


def published(db: Connection) -> pa.Table:
    """The events since the last call."""
    events = take_events(db)
    columns = {"type": "type", "data": "data", "table": "extra1"}
    return pa.table(
        {name: pa.array([getattr(x, part) for x in events]) for name, part in columns.items()}
    )


def read(
    events: pa.Table,
    schema: t.StructType = SCHEMA,
    key: tuple[str, ...] = ("id",),
    missing: MissingColumns = "malformed",
) -> list[Any]:
    """The row of each event, or the reason why it is malformed."""
    parsed = ChangeParser(schema, key, missing).parse(*events.columns)
    found = zip(parsed.columns[3].to_pylist(), parsed.reasons.to_pylist(), strict=True)
    return [reason or row for row, reason in found]


GONE = {"id": 1, "note": None}
NOTE_NEEDED = t.StructType([t.StructField("id", INT32), t.StructField("note", STRING, False)])
WIDER = fields(id=INT32, note=STRING, paid=BOOLEAN)
AS_IT_IS = "update t set id = id"
BOB = {"id": 1, "note": "Bob"}
OTHER_KEY = "the event's key is note,id"


class Story(NamedTuple):
    """What happens to a table, and what is read of its events."""

    happens: list[str]
    # By schema, key and what a missing column is.
    read: list[tuple[t.StructType, tuple[str, ...], MissingColumns, list[Any]]]
    table: str = TABLE
    trigger: tuple[str, ...] = ()


STORIES = {
    **{
        f"a column is {change.split()[3]}ed": Story(
            ["insert into t values (1, 'Ann')", change, AS_IT_IS, "insert into t values (2)",
             "delete from t where id = 1"],
            # The delete has its key.
            [(SCHEMA, ("id",), "malformed", [ANN, "note is missing", "note is missing", GONE]),
             (SCHEMA, ("id",), "null", [ANN, GONE, {"id": 2, "note": None}, GONE])],
        )
        for change in ("alter table t rename note to remark", "alter table t drop note")
    },
    "a column that must not be null is renamed": Story(
        ["alter table t rename note to remark", "insert into t values (1, 'Ann')"],
        [(NOTE_NEEDED, ("id",), "null", ["note is missing"])],
    ),
    "a column is added": Story(
        ["insert into t values (1, 'Ann')", "alter table t add paid bool default true", AS_IT_IS],
        [(SCHEMA, ("id",), "malformed", [ANN, ANN]),
         (WIDER, ("id",), "malformed", ["paid is missing", {**ANN, "paid": True}]),
         (WIDER, ("id",), "null", [{**ANN, "paid": None}, {**ANN, "paid": True}])],
    ),
    "columns swap their names": Story(
        ["insert into t values (1, 'x', 'y')", "alter table t rename a to c",
         "alter table t rename b to a", "alter table t rename c to b", AS_IT_IS],
        [(fields(id=INT32, a=STRING, b=STRING), ("id",), "malformed",
          [{"id": 1, "a": "x", "b": "y"}, {"id": 1, "a": "y", "b": "x"}])],
        "create table t (id int primary key, a text, b text)",
    ),
    "the key grows": Story(
        ["insert into t values (1, 'Ann')", "alter table t drop constraint t_pkey",
         "alter table t add primary key (note, id)", "insert into t values (1, 'Bob')",
         "update t set id = id where note = 'Bob'", "delete from t where note = 'Ann'"],
        [(SCHEMA, ("id",), "malformed", [ANN, *[OTHER_KEY] * 3]),
         (SCHEMA, ("id", "note"), "malformed", ["the event's key is id", BOB, BOB, ANN])],
        "create table t (id int primary key, note text not null)",
    ),
    "the key is renamed": Story(
        ["alter table t rename id to number", "insert into t values (1, 'Ann')"],
        [(SCHEMA, ("id",), "malformed", ["the event's key is number, id is missing"])],
    ),
    "the trigger names the key": Story(
        ["insert into t values (1, 'Ann')", "update t set id = 2"],
        [(SCHEMA, ("note",), "malformed", [ANN, {"id": 2, "note": "Ann"}]),
         (SCHEMA, ("id",), "malformed", ["the event's key is note"] * 2)],
        trigger=("pkey=note",),
    ),
    "there is no primary key": Story(
        ["insert into t values (1, 'Ann'), (null, 'Bob')"],
        [(SCHEMA, ("id",), "malformed", [ANN, "id is null"])],
        "create table t (id int, note text)",
    ),
    # The update changes nothing else, and so makes no event.
    "a column is ignored": Story(
        ["insert into t values (1, 'Ann')", "update t set note = 'Bob'", "delete from t"],
        [(fields(id=INT32), ("id",), "malformed", [{"id": 1}] * 2),
         (SCHEMA, ("id",), "malformed", ["note is missing", GONE])],
        trigger=("ignore=note",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("story", STORIES)
def test_rows_are_read_by_their_names_or_are_malformed(
    db: Connection, function: str, story: str
) -> None:
    happens, readings, sql, trigger = STORIES[story]
    table(db, function, *trigger, sql=sql)
    run(db, *happens)

    events = published(db)

    for schema, key, missing, expected in readings:
        assert read(events, schema, key, missing) == expected, (schema, key, missing)


def test_a_key_column_with_a_comma_in_its_name_is_not_taken_for_two(
    db: Connection, function: str
) -> None:
    table(db, function, sql='create table t ("a,b" int primary key, a int, b int)')
    run(db, "insert into t values (1, 5, 5), (2, 5, 5)", 'delete from t where "a,b" = 2')

    found = read(published(db), fields(a=INT32, b=INT32), key=("a", "b"))

    assert found == ['the event\'s key is ["a,b"]'] * 3


# Type, value, the new type, how the value is converted, the Spark type, and what is read of both.
NOON = datetime(2026, 1, 31, 12)
TYPE_CHANGES: list[tuple[str, str, str, str, t.DataType, Any, Any]] = [
    ("int", "7", "bigint", "v::bigint", INT32, 7, 7),
    ("int", "7", "bigint", "v + 2147483647::bigint", INT32, 7, "v is no int"),
    ("int", "7", "text", "'x' || v", INT32, 7, "v is no int"),
    ("int", "7", "numeric", "v + 0.5", INT32, 7, "v is no int"),
    ("text", "7", "int", "v::int", STRING, "7", "7"),
    ("bool", "t", "text", "v::text", BOOLEAN, True, "v is no boolean"),
    ("bool", "t", "int", "v::int", BOOLEAN, True, "v is no boolean"),
    ("numeric", "1.5", "numeric", "v + 0.005", MONEY, Decimal("1.50"), "v is no decimal(5,2)"),
    ("numeric", "1.5", "float8", "v", MONEY, Decimal("1.50"), Decimal("1.50")),
    ("numeric", "1.5", "money", "v::money", MONEY, Decimal("1.50"), "v is no decimal(5,2)"),
    ("timestamp", f"{NOON}", "timestamptz", "v", LOCAL, NOON, "v has a time zone"),
    ("timestamptz", f"{NOON}Z", "timestamp", "v", INSTANT, NOON.replace(tzinfo=UTC),
     "v has no time zone"),
    ("date", "2026-01-31", "timestamp", "v", DATE, NOON.date(), "v is no date"),
    ("bytea", r"\x00", "text", "'0'", BINARY, b"\0", "v is no binary"),
]  # fmt: skip


def test_after_a_column_got_another_type_its_values_fit_or_are_malformed(
    db: Connection, function: str
) -> None:
    found, expected = [], []
    for before, literal, after, using, data_type, first, later in TYPE_CHANGES:
        run(db, "drop table if exists t")
        table(db, function, sql=f"create table t (id int primary key, v {before})")
        run(db, f"insert into t values (1, '{literal}')")
        run(db, f"alter table t alter v type {after} using {using}", "update t set id = id")
        found.append(read(published(db), fields(id=INT32, v=data_type)))
        is_reason = str(later).startswith("v ")
        expected.append([{"id": 1, "v": first}, later if is_reason else {"id": 1, "v": later}])

    assert found == expected


def test_an_update_shows_the_new_row_with_what_did_not_change(
    db: Connection, function: str
) -> None:
    table(db, function, "backup", sql="create table t (id int primary key, n int, note text)")
    long = "select string_agg(md5(n::text), '') from generate_series(1, 3000) n"
    run(db, f"insert into t values (1, 1, ({long}))", "update t set n = 2")
    ((note,),) = rows(db, "select note from t where pg_column_size(note) > 2000")

    found = read(published(db), fields(id=INT32, n=INT32, note=STRING))

    assert found == [{"id": 1, "n": 1, "note": note}, {"id": 1, "n": 2, "note": note}]


def test_a_stored_generated_column_is_shown_by_an_after_trigger(
    db: Connection, function: str
) -> None:
    sql = "create table t (id int primary key, note text generated always as ('x' || id) stored)"
    table(db, function, sql=sql)
    attach(db, function, when="before", name="early")
    run(db, "insert into t values (1)")

    assert read(published(db)) == ["note is missing", {"id": 1, "note": "x1"}]
