"""Payloads and changes are read in a stream and in `foreachBatch` as in a batch."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster.client import Client, InvalidArgument, MalformedPayload
from pgque_dagster.spark import SparkBatch, parse_changes, parse_payloads
from pgque_dagster.spark.cluster.executor_errors import executor_error
from tests.spark.payload.payload_batches import SCHEMAS, shown, wrong
from tests.spark.payload.payload_values import fields
from tests.spark.payload.row_values import REFUSED, TAKEN
from tests.support.clusters import connect_server, run_driver
from tests.support.events import claim, publish, tick
from tests.support.payload_driver import WAYS
from tests.support.streams import PATIENCE_SECONDS, Stream

ORDER = "id bigint not null, total double"
Parse = Callable[[DataFrame], DataFrame]


@pytest.fixture
def stream(client: Client, spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark, client.url, tmp_path / "checkpoint")


def streamed(stream: Stream, parse: Parse, target: Path) -> DataFrame:
    """What a query stores that parses its events, up to now, in a table of files."""
    writer = stream.writer(parse(stream.events())).format("parquet")
    query = writer.trigger(availableNow=True).start(str(target))
    assert query.awaitTermination(PATIENCE_SECONDS), "the query does not end"
    return stream.spark.read.parquet(str(target))


def collected(stream: Stream, parse: Parse) -> list[dict[str, Any]]:
    """What a query reads that parses its events in foreachBatch."""
    found: list[dict[str, Any]] = []
    stream.drain(lambda events, _: found.extend(parse(events).toArrow().to_pylist()))
    return found


@pytest.mark.parametrize("place", ["stream", "foreach batch"])
def test_a_stream_is_read_as_the_corpus_says(
    client: Client, stream: Stream, tmp_path: Path, place: str
) -> None:
    schema, some = SCHEMAS[0 if place == "stream" else 2]
    expected = dict(zip(publish(client, [case.payload for case in some]), some, strict=True))

    def parse(events: DataFrame) -> DataFrame:
        return parse_payloads(events, schema, keep=["ev_id"], on_malformed="keep")

    if place == "stream":
        found = streamed(stream, parse, tmp_path / "stored").toArrow().to_pylist()
    else:
        found = collected(stream, parse)

    assert wrong(found, expected) == []


@pytest.mark.slow
def test_batches_and_streams_on_a_connect_server_are_read_as_the_corpus_says(
    client: Client, tmp_path: Path
) -> None:
    for way in WAYS:
        client.register_consumer("orders", way)
    ids = publish(client, [case.payload for case in SCHEMAS[0][1]])
    (tmp_path / "ids.json").write_text(json.dumps(ids))

    with connect_server(tmp_path) as master:
        report = run_driver(master, "read_corpus", client.url, tmp_path, module="payload_driver")

    assert report == {way: [len(ids), []] for way in WAYS}


def test_a_query_fails_at_a_malformed_event_which_comes_again_and_can_be_kept(
    client: Client, stream: Stream, tmp_path: Path
) -> None:
    _, wrong, _ = publish(client, [{"id": 1}, {"id": "secret"}, {"id": 2, "total": 1.5}])
    target = tmp_path / "stored"
    with pytest.raises(StreamingQueryException) as raised:
        streamed(stream, lambda events: parse_payloads(events, ORDER), target)
    cause = executor_error(raised.value)

    assert isinstance(cause, MalformedPayload)
    assert "1 of 3 events that were read together are malformed" in str(cause)
    assert f"event {wrong}: Expected `int`, got `str` - at `$.id`" in str(cause)
    assert "Correct the schema, or pass on_malformed='keep'" in str(cause)
    assert "secret" not in str(raised.value)

    keep = ["ev_id"]
    stored = streamed(
        stream, lambda events: parse_payloads(events, ORDER, keep=keep, on_malformed="keep"), target
    )

    assert stored.columns == ["ev_id", "id", "total", "ev_malformed"]
    assert [tuple(row)[1:] for row in stored.orderBy("ev_id").collect()] == [
        (1, None, None), (None, None, "Expected `int`, got `str` - at `$.id`"), (2, 1.5, None)
    ]  # fmt: skip


def test_a_malformed_event_in_foreach_batch_ends_the_query_by_default(
    client: Client, stream: Stream
) -> None:
    publish(client, ["no JSON"])

    with pytest.raises(StreamingQueryException) as raised:
        collected(stream, lambda events: parse_payloads(events, ORDER))

    assert isinstance(executor_error(raised.value), MalformedPayload)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schema": ""}, "no field"),
        ({"schema": "id interval day"}, "id is of type interval day"),
        ({"keep": ["ev_what"]}, "the events have no column ev_what, only ev_id, ev_data, more"),
        ({"keep": ["more"], "schema": "More string"}, "More is both a payload field"),
        ({"on_malformed": "keep", "schema": "ev_malformed int"}, "ev_malformed is both a payload"),
        ({"on_malformed": "dead_letter"}, "on_malformed is 'dead_letter'.*no ack.*SparkBatch"),
    ],
)
def test_what_cannot_be_read_so_is_refused_at_once(
    spark: SparkSession, options: dict[str, Any], message: str
) -> None:
    events = spark.createDataFrame([], "ev_id bigint, ev_data string, more string")

    with pytest.raises(InvalidArgument, match=message):
        parse_payloads(events, **{"schema": ORDER, **options})
    with pytest.raises(InvalidArgument, match="no column ev_data, only ev_id"):
        parse_payloads(events.select("ev_id"), ORDER)


def test_a_field_may_be_named_like_an_event_column(spark: SparkSession) -> None:
    payload = '{"ev_id":7,"ev_data":"x","ev_malformed":"y","a`b":1}'
    events = spark.createDataFrame([(1, payload)], "ev_id bigint, ev_data string")
    schema = "ev_id bigint, ev_data string, ev_malformed string, `a``b` int"

    (row,) = parse_payloads(events, schema).collect()

    assert tuple(row) == (7, "x", "y", 1)


# Changes that capture publishes.

TYPES = {data_type.simpleString(): data_type for data_type, _ in TAKEN}
SCHEMA = fields(id=TYPES["int"], **TYPES)
NOTHING = dict.fromkeys(TYPES)
# What is read of an event, or a part of the reason.
OTHERS: dict[tuple[str, str], Any] = {
    ("delete", '{"id":-1,"int":7}'): {**NOTHING, "id": -1, "int": 7},
    ("delete", '{"int":7}'): "missing required field `id`",
    ("update", '{"id":-2,"int":7}'): "missing required field",
    ("truncate", ""): None,
    ("I:id", "id=1"): "ev_type is no change of a table",
    ("insert", "{'id':1}"): "malformed",
}


def publish_changes(client: Client) -> dict[int, Any]:
    """Publishes each value in an event of its own; returns what is read of each."""
    cases = list(OTHERS.items())
    for kind, taken in TAKEN:
        name = kind.simpleString()
        for value, expected in taken.items():
            row = {"id": len(cases), **NOTHING, name: value}
            cases.append(
                (("insert", json.dumps(row)), {**NOTHING, "id": len(cases), name: expected})
            )
    for kind, misfits in REFUSED:
        name = kind.simpleString()
        for value in misfits:
            row = {"id": len(cases), **NOTHING, name: value}
            cases.append((("update", json.dumps(row)), f" - at `$.{name}`"))
    ids = [client.send("orders", data, type=kind) for (kind, data), _ in cases]
    tick(client)
    return {event_id: result for event_id, (_, result) in zip(ids, cases, strict=True)}


def check_changes(wanted: dict[int, Any], found: dict[int, Any], reasons: dict[int, str]) -> None:
    """Compares the rows and the reasons, by event."""
    told = {n: part for n, part in wanted.items() if isinstance(part, str)}
    assert reasons.keys() == told.keys()
    assert [reasons[n] for n, part in told.items() if part not in reasons[n]] == []
    assert in_order(found) == in_order({n: row for n, row in wanted.items() if n not in told})


def in_order(found: dict[int, Any]) -> str:
    """The values by event, with their fields in one order."""
    return shown(sorted((n, row and sorted(row.items())) for n, row in found.items()))


def test_changes_of_a_batch_are_read_as_the_texts_say(
    client: Client, spark: SparkSession, way: str
) -> None:
    wanted = publish_changes(client)
    batch = SparkBatch(spark, claim(client), client.url)

    rows = batch.changes(SCHEMA, key=["id"], keep=["ev_id"], max_malformed=1.0)
    found = {row["ev_id"]: row["row"] for row in rows.toArrow().to_pylist()}
    batch.claim.ack()

    letters = client.dead_letters("orders", 1000)
    check_changes(wanted, found, {letter.event_id: str(letter.reason) for letter in letters})


def test_changes_of_a_stream_are_read_as_the_texts_say(client: Client, stream: Stream) -> None:
    wanted = publish_changes(client)

    def parse(events: DataFrame) -> DataFrame:
        return parse_changes(events, SCHEMA, key=["id"], keep=["ev_id"], on_malformed="keep")

    stored = collected(stream, parse)

    reasons = {row["ev_id"]: row["ev_malformed"] for row in stored if row["ev_malformed"]}
    found = {row["ev_id"]: row["row"] for row in stored if not row["ev_malformed"]}
    check_changes(wanted, found, reasons)


def test_a_stream_fails_at_a_malformed_change_and_stores_nothing(
    client: Client, stream: Stream, tmp_path: Path
) -> None:
    client.send("orders", '{"id":1}', type="insert")
    bad = client.send("orders", '{"id":"x"}', type="insert")
    tick(client)

    def parse(events: DataFrame) -> DataFrame:
        return parse_changes(events, "id int", key=["id"]).select("operation", "row.id")

    with pytest.raises(StreamingQueryException) as caught:
        streamed(stream, parse, tmp_path / "output")

    cause = executor_error(caught.value)
    assert isinstance(cause, MalformedPayload)
    assert f"event {bad}: Expected `int`" in str(cause)
    assert not list((tmp_path / "output").glob("*.parquet"))


def test_what_a_stream_of_changes_cannot_do_is_named(spark: SparkSession) -> None:
    columns = "ev_id bigint, ev_type string, ev_data string"
    refused: list[tuple[str, dict[str, Any], str]] = [
        (columns, {}, "the events have no column ev_extra1"),
        (f"{columns}, ev_extra1 string, row int", {"keep": ["row"]}, "row is both a payload field"),
        (columns, {"on_malformed": "dead_letter"}, "on_malformed is 'dead_letter'"),
    ]
    for ddl, options, told in refused:
        with pytest.raises(InvalidArgument, match=told):
            parse_changes(spark.createDataFrame([], ddl), "id int", key=["id"], **options)
