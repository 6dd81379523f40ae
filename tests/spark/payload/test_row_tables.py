"""Tables that change their columns, types and key while both triggers publish them.

What comes of it stands in docs/triggers.md.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

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


@pytest.fixture(params=["jsontriga", "logutriga"])
def function(request: pytest.FixtureRequest) -> str:
    return str(request.param)


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
    found = zip(parsed.rows.to_pylist(), parsed.reasons.to_pylist(), strict=True)
    return [reason or row for row, reason in found]


@pytest.mark.parametrize(
    "change", ["alter table t rename note to remark", "alter table t drop note"]
)
def test_a_column_renamed_or_dropped_is_malformed_and_no_null(
    db: Connection, function: str, change: str
) -> None:
    table(db, function)
    run(db, "insert into t values (1, 'Ann')", change, "update t set id = id")
    run(db, "insert into t values (2)", "delete from t where id = 1")

    events = published(db)

    # The delete has its key.
    gone = {"id": 1, "note": None}
    assert read(events) == [ANN, "note is missing", "note is missing", gone]
    assert read(events, missing="null") == [ANN, gone, {"id": 2, "note": None}, gone]


def test_a_column_renamed_is_malformed_where_it_must_not_be_null(
    db: Connection, function: str
) -> None:
    table(db, function)
    run(db, "alter table t rename note to remark", "insert into t values (1, 'Ann')")
    schema = t.StructType([t.StructField("id", INT32), t.StructField("note", STRING, False)])

    assert read(published(db), schema, missing="null") == ["note is missing"]


def test_a_column_added_is_read_by_those_who_name_it(db: Connection, function: str) -> None:
    table(db, function)
    run(db, "insert into t values (1, 'Ann')", "alter table t add paid bool default true")
    run(db, "update t set id = id")
    wider = fields(id=INT32, note=STRING, paid=BOOLEAN)

    events = published(db)

    assert read(events) == [ANN, ANN]
    assert read(events, wider) == ["paid is missing", {**ANN, "paid": True}]
    assert read(events, wider, missing="null") == [{**ANN, "paid": None}, {**ANN, "paid": True}]


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


def test_columns_that_swap_names_are_read_by_their_names(db: Connection, function: str) -> None:
    table(db, function, sql="create table t (id int primary key, a text, b text)")
    run(db, "insert into t values (1, 'x', 'y')", "alter table t rename a to c")
    run(db, "alter table t rename b to a", "alter table t rename c to b", "update t set id = id")

    assert read(published(db), fields(id=INT32, a=STRING, b=STRING)) == [
        {"id": 1, "a": "x", "b": "y"},
        {"id": 1, "a": "y", "b": "x"},
    ]


def test_a_key_that_grew_is_malformed(db: Connection, function: str) -> None:
    table(db, function, sql="create table t (id int primary key, note text not null)")
    run(db, "insert into t values (1, 'Ann')", "alter table t drop constraint t_pkey")
    run(db, "alter table t add primary key (note, id)", "insert into t values (1, 'Bob')")
    run(db, "update t set id = id where note = 'Bob'", "delete from t where note = 'Ann'")

    events = published(db)

    assert read(events) == [ANN, *["the event's key is note,id"] * 3]
    bob = {"id": 1, "note": "Bob"}
    assert read(events, key=("id", "note")) == ["the event's key is id", bob, bob, ANN]


def test_a_key_column_with_a_comma_in_its_name_is_not_taken_for_two(
    db: Connection, function: str
) -> None:
    table(db, function, sql='create table t ("a,b" int primary key, a int, b int)')
    run(db, "insert into t values (1, 5, 5), (2, 5, 5)", 'delete from t where "a,b" = 2')

    found = read(published(db), fields(a=INT32, b=INT32), key=("a", "b"))

    said = {
        "jsontriga": 'the event\'s key is ["a,b"]',
        "logutriga": "the event's key is a,b, and a column is named a,b",
    }
    assert found == [said[function]] * 3


def test_a_key_that_was_renamed_is_malformed(db: Connection, function: str) -> None:
    table(db, function)
    run(db, "alter table t rename id to number", "insert into t values (1, 'Ann')")

    assert read(published(db)) == ["the event's key is number, id is missing"]


def test_the_triggers_argument_pkey_is_the_key(db: Connection, function: str) -> None:
    table(db, function, "pkey=note")
    run(db, "insert into t values (1, 'Ann')", "update t set id = 2")

    events = published(db)

    assert read(events, key=("note",)) == [ANN, {"id": 2, "note": "Ann"}]
    assert read(events) == ["the event's key is note"] * 2


def test_a_table_without_a_primary_key_has_inserts(db: Connection, function: str) -> None:
    table(db, function, sql="create table t (id int, note text)")
    run(db, "insert into t values (1, 'Ann'), (null, 'Bob')")

    assert read(published(db)) == [ANN, "id is null"]


def test_an_ignored_column_is_missing_from_every_event(db: Connection, function: str) -> None:
    table(db, function, "ignore=note")
    run(db, "insert into t values (1, 'Ann')", "update t set note = 'Bob'", "delete from t")

    events = published(db)

    # The update changed nothing else, and so made no event.
    assert read(events, fields(id=INT32)) == [{"id": 1}] * 2
    assert read(events) == ["note is missing", {"id": 1, "note": None}]


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
