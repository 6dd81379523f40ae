"""A claimed batch as DataFrames; both ways of reading must give the same."""

import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Client
from pgque_dagster.spark import SparkBatch
from pgque_dagster.spark.batch import DRIVER_SIDE_BYTES, attempt_of
from tests.support.events import claim, make_queue, publish, tick


def test_events_are_those_of_the_batch(database_url: str, spark: SparkSession, way: str) -> None:
    with Client(database_url) as client:
        make_queue(client)
        ids = publish(client, ["a", "b", "c"])
        batch = SparkBatch(spark, claim(client), database_url)

        rows = batch.events().orderBy("ev_id").collect()

        assert batch.event_count == 3
        assert [(row.ev_id, row.ev_data) for row in rows] == list(
            zip(ids, ["a", "b", "c"], strict=True)
        )


def test_an_empty_batch_has_no_events(database_url: str, spark: SparkSession, way: str) -> None:
    with Client(database_url) as client:
        make_queue(client)
        tick(client)
        batch = SparkBatch(spark, claim(client), database_url)

        assert batch.events().count() == 0
        assert batch.payload("id bigint").columns == ["id"]


def test_a_batch_does_not_show_the_password_of_its_database(
    database_url: str, spark: SparkSession
) -> None:
    with Client(database_url) as client:
        make_queue(client)
        publish(client, ["a"])
        url = "postgresql://reader:s3cret@db/shop"
        batch = SparkBatch(spark, claim(client), url)

        public = [getattr(batch, name) for name in dir(batch) if not name.startswith("_")]

        assert "s3cret" not in repr([attempt_of(batch), *public])


def test_few_events_with_large_texts_are_read_by_executors(
    database_url: str, spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    with Client(database_url) as client:
        make_queue(client)
        large = "x" * (DRIVER_SIDE_BYTES // 2)
        publish(client, [large, "small"])
        small = SparkBatch(spark, claim(client), database_url)
        small.events().explain()
        assert "LocalTableScan" in capfd.readouterr().out
        small.claim.ack()
        publish(client, [large, large])

        events = SparkBatch(spark, claim(client), database_url).events()

        events.explain()
        assert "LocalTableScan" not in capfd.readouterr().out
        assert [len(row.ev_data) for row in events.collect()] == [len(large)] * 2
