"""Changes of a captured table as typed columns."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from pgque_dagster.client import Client, InvalidArgument, MalformedPayload
from pgque_dagster.spark import SparkBatch
from tests.support.queues.events import claim, tick
from tests.support.queues.sql import Connection, connect
from tests.support.spark.attempts import BatchOf

TABLE = (
    "create table t (id int primary key, big bigint, paid boolean, amount numeric(10,2),"
    " share float8, day date, at timestamptz, raw bytea, note text)"
)
SCHEMA = (
    "id int not null, big bigint, paid boolean, amount decimal(10,2), share double, day date,"
    " at timestamp, raw binary, note string"
)
CAPTURE = b"select pgque.capture('t', 'orders')"
NOTE = "a=b&c +%25 é\n"
ROW: dict[str, Any] = {
    "id": 1,
    "big": 2**62,
    "paid": True,
    "amount": Decimal("10.50"),
    "share": 0.1,
    "day": date(2026, 1, 31),
    "at": datetime(2026, 1, 31, 12, 0, 0, 500000, tzinfo=UTC),
    "raw": bytearray(b"\x00\xff"),
    "note": NOTE,
}


@pytest.fixture
def db(client: Client) -> Iterator[Connection]:
    with connect(client.url) as connection:
        connection.execute(TABLE.encode())
        yield connection


def change(db: Connection) -> None:
    """Inserts, updates, deletes and truncates."""
    db.execute("set timezone = 'Asia/Kolkata'")
    db.execute(
        "insert into t values (1, 2^62, true, 10.5, 0.1, '2026-01-31', '2026-01-31 12:00:00.5Z',"
        " '\\x00ff', %s)",
        [NOTE],
    )
    db.execute("update t set note = null, share = 'NaN' where id = 1")
    db.execute("delete from t")
    db.execute("truncate t")


def plain(row: Row) -> dict[str, Any]:
    values: dict[str, Any] = row.asDict(recursive=True)
    if values["row"]:
        values["row"]["at"] = row.row["at"].astimezone(UTC)
    return values


def test_changes_have_operation_table_key_and_row_with_their_types(
    client: Client, db: Connection, spark: SparkSession
) -> None:
    db.execute(CAPTURE)
    change(db)
    tick(client)
    batch = SparkBatch(spark, claim(client), client.url)

    found = batch.changes(SCHEMA, key=["id"], keep=["ev_id"], on_malformed="fail")
    inserted, updated, deleted, truncated = map(plain, found.orderBy("ev_id").collect())

    assert inserted == {
        "ev_id": inserted["ev_id"],
        "operation": "insert",
        "table": "public.t",
        "key": {"id": 1},
        "row": ROW,
    }
    assert updated["operation"] == "update"
    assert str(updated["row"].pop("share")) == "nan"
    assert updated["row"] == {name: value for name, value in ROW.items() if name != "share"} | {
        "note": None
    }
    assert (deleted["operation"], deleted["key"]) == ("delete", {"id": 1})
    assert (truncated["operation"], truncated["table"]) == ("truncate", "public.t")
    assert (truncated["key"], truncated["row"]) == (None, None)


def test_changes_that_do_not_fit_become_dead_letters_with_their_reasons(
    client: Client, db: Connection, batch_of: BatchOf
) -> None:
    db.execute(CAPTURE)
    db.execute("insert into t (id, note) values (1, '7'), (2, 'many'), (3, null)")
    client.send("orders", "id=1", type="I:id")
    client.send("orders", "[]", type="insert")
    client.send("orders", "x", type="insert")
    batch = batch_of("x")

    rows = batch.changes(
        "id int, note decimal(9,0) not null", key=["id"], max_malformed=1
    ).collect()
    batch.claim.ack()

    assert [(row.row.id, row.row.note) for row in rows] == [(1, 7)]
    assert sorted(str(letter.reason) for letter in client.dead_letters("orders")) == [
        "malformed payload: Expected `decimal`, got `null` - at `$.note`",
        "malformed payload: Expected `object`, got `array`",
        "malformed payload: Invalid decimal string - at `$.note`",
        "malformed payload: JSON is malformed: invalid character (byte 0)",
        "malformed payload: ev_type is not a change of a table",
        "malformed payload: ev_type is not a change of a table",
    ]
    with pytest.raises(InvalidArgument, match=r"missing_columns is 'keep'.*malformed, null"):
        batch.changes("id int", key=["id"], missing_columns="keep")
    for schema, key, words in (
        ("id int", [], "the key is"),
        ("id int", "id", "the key is 'id'"),
        ("id int", ["number"], "but the schema has id"),
        ("id int, t array<array<int>>", ["id"], "t is of type array<array<int>>"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            batch.changes(schema, key=key)


def test_an_update_after_a_column_was_renamed_is_no_null(
    client: Client, db: Connection, spark: SparkSession
) -> None:
    db.execute(CAPTURE)
    db.execute("insert into t (id, note) values (1, 'kept')")
    db.execute("alter table t rename note to remark")
    db.execute("update t set paid = true")
    tick(client)
    batch = SparkBatch(spark, claim(client), client.url)

    with pytest.raises(MalformedPayload, match=r"1 of 2 events .*field `note`"):
        batch.changes("id int, note string", key=["id"], on_malformed="fail")
    rows = batch.changes("id int, note string", key=["id"], missing_columns="null").collect()
    assert sorted((row.operation, row.row.note) for row in rows) == [
        ("insert", "kept"),
        ("update", None),
    ]
