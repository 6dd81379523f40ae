"""Payloads and changes are read in a stream and in `foreachBatch` as in a batch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster.client import Client, InvalidArgument, MalformedPayload
from pgque_dagster.spark import parse_changes, parse_payloads
from pgque_dagster.spark.cluster.executor_errors import executor_error
from tests.support.queues.events import publish, tick
from tests.support.spark.streams import PATIENCE_SECONDS, Stream

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


UNREADABLE: list[tuple[dict[str, Any], str]] = [
    ({"schema": ""}, "no field"),
    ({"schema": "id interval day"}, "id is of type interval day"),
    ({"keep": ["ev_what"]}, "the events have no column ev_what, only ev_id, ev_data, more"),
    ({"keep": ["more"], "schema": "More string"}, "More is both a payload field"),
    ({"on_malformed": "keep", "schema": "ev_malformed int"}, "ev_malformed is both a payload"),
    ({"on_malformed": "dead_letter"}, "on_malformed is 'dead_letter'.*no ack.*SparkBatch"),
]


def test_what_cannot_be_read_so_is_refused_at_once(spark: SparkSession) -> None:
    events = spark.createDataFrame([], "ev_id bigint, ev_data string, more string")

    for options, message in UNREADABLE:
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


def test_changes_in_foreach_batch_are_rows_or_have_a_reason(client: Client, stream: Stream) -> None:
    for kind, row in (("insert", '{"id":1,"note":"x"}'), ("truncate", ""), ("update", '{"id":2}')):
        client.send("orders", row, type=kind)
    tick(client)

    def parse(events: DataFrame) -> DataFrame:
        schema, keep = "id int, note string", ["ev_id"]
        return parse_changes(events, schema, key=["id"], keep=keep, on_malformed="keep")

    found = sorted(collected(stream, parse), key=lambda row: row["ev_id"])

    assert [(row["operation"], row["row"], row["ev_malformed"]) for row in found] == [
        ("insert", {"id": 1, "note": "x"}, None),
        ("truncate", None, None),
        ("update", None, "Object missing required field `note`"),
    ]


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
    changes = spark.createDataFrame(
        [(7, "insert", '{"id":"x"}', "t")], f"{columns}, ev_extra1 string"
    )
    with pytest.raises(PySparkException) as caught:
        parse_changes(changes, "id int", key=["id"]).collect()
    assert isinstance(cause := executor_error(caught.value), MalformedPayload)
    assert "event 7: Expected `int" in str(cause)
