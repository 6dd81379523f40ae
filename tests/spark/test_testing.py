"""Batches made of rows: read as those of a server, and refused where a server is needed."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from pgque_dagster import batch_from_rows
from pgque_dagster.client import Client, Event, InvalidArgument, MalformedPayload, Message
from pgque_dagster.spark import ParquetSink, SparkBatch

ROWS = [{"id": 1, "name": "tea"}, '{"id":2}', Event({"id": 3}, type="paid", key="a"), b"\x00"]


def test_rows_are_read_as_a_batch_of_a_server(client: Client, spark: SparkSession) -> None:
    made = batch_from_rows(spark, ROWS)
    sent = client.send_batch("orders", ROWS)
    client.force_next_tick("orders")
    client.ticker()
    claim = client.claim("orders", "revenue", owner="a test")
    assert claim is not None
    real = SparkBatch(spark, claim, client.url)

    columns = ["ev_retry", "ev_type", "ev_data", "ev_extra1", "ev_extra4"]
    found = [batch.events(columns).orderBy("ev_data") for batch in (made, real)]

    assert found[0].collect() == found[1].collect()
    assert made.events().schema == real.events().schema
    assert [row.ev_id for row in made.events(["ev_id"]).collect()] == [1, 2, 3, 4]
    assert made.event_count == real.event_count == len(sent)
    schema = "id bigint not null, name string"
    assert sorted(made.payload(schema).collect(), key=str) == sorted(
        real.payload(schema).collect(), key=str
    )
    assert made.claim.requested == real.claim.requested


def test_what_a_function_sets_aside_is_counted(spark: SparkSession) -> None:
    batch = batch_from_rows(spark, [{"id": n} for n in range(5)], queue="orders")
    events = batch.payload("id int not null", keep=["ev_id"])

    batch.nack(events.where("id = 0"))
    batch.dead_letter(events.where("id > 3"), reason=f.lit("late"))

    assert (batch.claim.requested.nacked, batch.claim.requested.dead_lettered) == (1, 1)
    with pytest.raises(MalformedPayload, match="5 of 5 events of batch 1 of orders/consumer"):
        batch.payload("name string not null")


def test_a_message_keeps_its_id_its_time_and_its_fields(spark: SparkSession) -> None:
    at = datetime(2026, 11, 26, 12, tzinfo=UTC)
    captured = Message(7, "insert", '{"id":1}', 2, at, extra1="public.orders", extra2="x")
    batch = batch_from_rows(spark, [captured])

    (event,) = batch.events().collect()
    assert (event.ev_id, event.ev_retry, event.ev_extra2) == (7, 2, "x")
    assert (batch.plan.oldest, batch.plan.newest) == (at, at)
    (change,) = batch.changes("id int not null", key=["id"]).collect()
    assert (change.operation, change.table, change.row.id) == ("insert", "public.orders", 1)


def test_a_batch_without_rows_is_empty(spark: SparkSession) -> None:
    batch = batch_from_rows(spark, [])
    assert batch.event_count == 0
    assert batch.payload("id int").collect() == []


def test_more_rows_than_the_driver_reads_from_a_server_need_none_either(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgque_dagster.spark.batch.DRIVER_SIDE_EVENTS", 1)
    assert batch_from_rows(spark, ["1", "2"]).events().count() == 2


def test_what_needs_a_server_says_so(spark: SparkSession, tmp_path: Path) -> None:
    batch = batch_from_rows(spark, [{"id": 1}])
    with pytest.raises(InvalidArgument, match="made of rows has no database"):
        ParquetSink(tmp_path).write(batch, batch.events())
    with pytest.raises(InvalidArgument, match="only a claimed batch is acked"):
        batch.before_ack(lambda connection: None)
