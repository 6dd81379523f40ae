"""Changes are read alike on the driver, by executors and in a stream."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster.client import Client, InvalidArgument, MalformedPayload
from pgque_dagster.spark import SparkBatch, parse_changes
from pgque_dagster.spark.cluster.executor_errors import executor_error
from tests.spark.payload.payload_values import fields
from tests.spark.payload.row_values import REFUSED, TAKEN
from tests.spark.payload.test_json_parser import shown
from tests.spark.payload.test_row_parser import FORMATS, as_event
from tests.support.events import claim, tick
from tests.support.queues import Connection, connect
from tests.support.streams import PATIENCE_SECONDS, Stream

TYPES = {data_type.simpleString(): data_type for data_type, _ in TAKEN}
SCHEMA = fields(id=TYPES["int"], **TYPES)
# Each event has one value.
VALUES = [
    (kind.simpleString(), text, value) for kind, some in TAKEN for text, value in some.items()
]
MISFITS = [(kind.simpleString(), text) for kind, some in REFUSED for text in some]
_, WHOLE_ROW = as_event("url", "insert", {"id": "-3", **dict.fromkeys(TYPES)})
OTHERS = {
    ("D:id", "id=-1&int=7"): ({"id": -1, "int": 7}, None),
    ("D:id", "int=7"): (None, "id is missing"),
    ("U:id", "id=-2&int=7"): (
        None,
        ", ".join(f"{name} is missing" for name in TYPES if name != "int"),
    ),
    ("I:number", WHOLE_ROW): (None, "the event's key is number"),
    ("R", ""): (None, None),
    ("I:id", "%"): (None, "no url-encoded row"),
    ('{"op":"INSERT"}', "{'id':1}"): (None, "no JSON"),
    ("default", "x"): (None, "ev_type is not of jsontriga or logutriga"),
}


@pytest.fixture
def db(database_url: str) -> Iterator[Connection]:
    with connect(database_url) as connection:
        yield connection


def expected(client: Client) -> dict[int, tuple[Any, str | None]]:
    """Publishes all cases; returns the row or the reason of each event."""
    nothing = dict.fromkeys(TYPES)
    cases: list[tuple[tuple[str | None, str | None], tuple[Any, str | None]]] = []
    for form in FORMATS:
        for name, text, value in VALUES:
            row = {"id": str(len(cases)), **nothing, name: text}
            cases.append(
                (as_event(form, "insert", row), ({"id": len(cases), **nothing, name: value}, None))
            )
        for name, text in MISFITS:
            row = {"id": str(len(cases)), **nothing, name: text}
            cases.append((as_event(form, "update", row), (None, f"{name} is no {name}")))
    for event, (row, reason) in OTHERS.items():
        found = row and {"id": row["id"], **nothing, **row}
        cases.append((event, (found, reason)))
    ids = [client.send("orders", data or "", type=kind or "") for (kind, data), _ in cases]
    tick(client)
    return {event_id: result for event_id, (_, result) in zip(ids, cases, strict=True)}


def read(rows: DataFrame) -> dict[int, Any]:
    return {row["ev_id"]: row["row"] for row in rows.select("ev_id", "row").toArrow().to_pylist()}


def test_a_batch_is_read_as_the_texts_say(
    client: Client, database_url: str, spark: SparkSession, way: str
) -> None:
    wanted = expected(client)
    claimed = claim(client)

    batch = SparkBatch(spark, claimed, database_url)
    found = read(batch.changes(SCHEMA, key=["id"], keep=["ev_id"], max_malformed=1.0))
    claimed.ack()

    given_up = {x.event_id: x.reason for x in client.dead_letters("orders", 1000)}
    reasons = {n: f"malformed payload: {why}" for n, (_, why) in wanted.items() if why}
    assert given_up == reasons
    assert shown(dict(sorted(found.items()))) == shown(
        {n: row for n, (row, why) in wanted.items() if not why}
    )


def test_a_stream_is_read_as_the_texts_say(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    wanted = expected(client)
    stored: dict[int, tuple[Any, str | None]] = {}

    def store(events: DataFrame, _: int) -> None:
        changes = parse_changes(events, SCHEMA, key=["id"], keep=["ev_id"], on_malformed="keep")
        for row in changes.toArrow().to_pylist():
            why = row["ev_malformed"]
            stored[row["ev_id"]] = (None if why else row["row"], why)

    Stream(spark, client.url, tmp_path / "checkpoint").drain(store)

    reasons = {n: why for n, (_, why) in wanted.items()}
    assert {n: why for n, (_, why) in stored.items()} == reasons
    assert shown({n: stored[n][0] for n in wanted}) == shown({n: x for n, (x, _) in wanted.items()})


def test_a_stream_fails_at_a_malformed_change_and_stores_nothing(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    client.send("orders", "id=1", type="I:id")
    bad = client.send("orders", "id=x", type="I:id")
    tick(client)
    Stream(spark, client.url, tmp_path / "checkpoint")  # registers the source
    events = (
        spark.readStream.format("pgque")
        .options(url=client.url, queue="orders", consumer="revenue", lease_seconds="2")
        .load()
    )
    changes = parse_changes(events, "id int", key=["id"])
    output = tmp_path / "output"
    writer = changes.select("operation", "row.id").writeStream.format("parquet")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(str(output))

    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(PATIENCE_SECONDS)

    cause = executor_error(caught.value)
    assert isinstance(cause, MalformedPayload)
    assert f"event {bad}: id is no int" in str(cause)
    assert not list(output.glob("*.parquet"))


def test_what_a_stream_of_changes_cannot_do_is_named(spark: SparkSession) -> None:
    events = spark.createDataFrame([], "ev_id bigint, ev_type string, ev_data string")

    with pytest.raises(InvalidArgument, match="the events have no column ev_extra1"):
        parse_changes(events, "id int", key=["id"])
    clashing = spark.createDataFrame(
        [], "ev_id bigint, ev_type string, ev_data string, ev_extra1 string, row int"
    )
    with pytest.raises(InvalidArgument, match="row is both a column to keep"):
        parse_changes(clashing, "id int", key=["id"], keep=["row"])
    with pytest.raises(InvalidArgument, match="on_malformed is 'dead_letter'"):
        parse_changes(events, "id int", key=["id"], on_malformed="dead_letter")  # type: ignore[arg-type]
