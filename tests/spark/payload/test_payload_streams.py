"""docs/payloads.md holds for a stream, and in `foreachBatch`; nothing malformed is passed over."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from pgque_dagster.client import Client, InvalidArgument, MalformedPayload
from pgque_dagster.spark import parse_payloads
from pgque_dagster.spark.cluster.executor_errors import executor_error
from tests.spark.payload.payload_batches import SCHEMA_NAMES, SCHEMAS, wrong
from tests.spark.payload.payload_corpus import Case
from tests.support.events import publish
from tests.support.streams import PATIENCE_SECONDS, Stream

ORDER = "id bigint not null, total double"


@pytest.fixture
def stream(client: Client, spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark, client.url, tmp_path / "checkpoint")


def streamed(
    stream: Stream,
    parse: Callable[[DataFrame], DataFrame],
    target: str,
) -> DataFrame:
    """What a query stores that parses its events, up to now, in a table of files."""
    writer = stream.writer(parse(stream.events())).format("parquet")
    query = writer.trigger(availableNow=True).start(target)
    assert query.awaitTermination(PATIENCE_SECONDS), "the query does not end"
    return stream.spark.read.parquet(target)


@pytest.mark.parametrize(("schema", "some"), SCHEMAS, ids=SCHEMA_NAMES)
def test_a_stream_is_read_as_the_corpus_says(
    client: Client, stream: Stream, tmp_path: Path, schema: t.StructType, some: list[Case]
) -> None:
    expected = dict(zip(publish(client, [case.payload for case in some]), some, strict=True))

    stored = streamed(
        stream,
        lambda events: parse_payloads(events, schema, keep=["ev_id"], on_malformed="keep"),
        str(tmp_path / "stored"),
    )

    assert wrong(stored.toArrow().to_pylist(), expected) == []


@pytest.mark.parametrize(("schema", "some"), SCHEMAS, ids=SCHEMA_NAMES)
def test_foreach_batch_is_read_as_the_corpus_says(
    client: Client, stream: Stream, schema: t.StructType, some: list[Case]
) -> None:
    expected = dict(zip(publish(client, [case.payload for case in some]), some, strict=True))
    read: list[dict] = []

    def keep(events: DataFrame, number: int) -> None:
        parsed = parse_payloads(events, schema, keep=["ev_id"], on_malformed="keep")
        read.extend(parsed.toArrow().to_pylist())

    stream.drain(keep)

    assert wrong(read, expected) == []


def test_a_malformed_event_ends_the_query_by_default_with_its_reason_and_what_to_do(
    client: Client, stream: Stream, tmp_path: Path
) -> None:
    _, event_id = publish(client, [{"id": 1}, {"id": "secret"}])

    with pytest.raises(StreamingQueryException) as raised:
        streamed(stream, lambda events: parse_payloads(events, ORDER), str(tmp_path / "stored"))
    cause = executor_error(raised.value)

    assert isinstance(cause, MalformedPayload)
    assert "1 of 2 events that were read together are malformed" in str(cause)
    assert f"event {event_id}: id is no bigint" in str(cause)
    assert "Correct the schema, or pass on_malformed='keep'" in str(cause)
    assert "secret" not in str(raised.value)


def test_a_malformed_event_in_foreach_batch_ends_the_query_by_default(
    client: Client, stream: Stream
) -> None:
    publish(client, ["no JSON"])

    with pytest.raises(StreamingQueryException) as raised:
        stream.drain(lambda events, _: drained(parse_payloads(events, ORDER)))

    assert isinstance(executor_error(raised.value), MalformedPayload)


def drained(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def test_what_a_query_failed_at_comes_again_and_can_be_kept(
    client: Client, stream: Stream, tmp_path: Path
) -> None:
    publish(client, [{"id": 1}, "no JSON", {"id": 2, "total": 1.5}])
    target = str(tmp_path / "stored")
    with pytest.raises(StreamingQueryException):
        streamed(stream, lambda events: parse_payloads(events, ORDER), target)

    stored = streamed(
        stream, lambda events: parse_payloads(events, ORDER, on_malformed="keep"), target
    )

    assert sorted(map(tuple, stored.collect()), key=str) == [
        (1, None, None),
        (2, 1.5, None),
        (None, None, "no JSON"),
    ]


def test_event_columns_are_kept_beside_the_fields(
    client: Client, stream: Stream, tmp_path: Path
) -> None:
    (event_id,) = publish(client, [{"id": 7, "total": 1.5}])

    stored = streamed(
        stream,
        lambda events: parse_payloads(events, ORDER, keep=["ev_time", "ev_id"]),
        str(tmp_path / "stored"),
    )

    assert stored.columns == ["ev_time", "ev_id", "id", "total"]
    (row,) = stored.collect()
    assert (row.ev_id, row.id, row.total) == (event_id, 7, 1.5)


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
    spark: SparkSession, options: dict, message: str
) -> None:
    events = spark.createDataFrame([], "ev_id bigint, ev_data string, more string")

    with pytest.raises(InvalidArgument, match=message):
        parse_payloads(events, **{"schema": ORDER, **options})


def test_events_without_their_payload_are_refused(spark: SparkSession) -> None:
    events = spark.createDataFrame([], "ev_id bigint")

    with pytest.raises(InvalidArgument, match="no column ev_data, only ev_id"):
        parse_payloads(events, ORDER)


def test_a_field_may_be_named_like_an_event_column(spark: SparkSession) -> None:
    events = spark.createDataFrame(
        [(1, '{"ev_id":7,"ev_data":"x","ev_malformed":"y","a`b":1}')],
        "ev_id bigint, ev_data string",
    )

    (row,) = parse_payloads(
        events, "ev_id bigint, ev_data string, ev_malformed string, `a``b` int"
    ).collect()

    assert tuple(row) == (7, "x", "y", 1)
