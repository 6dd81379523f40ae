"""A claimed batch as DataFrames; both ways of reading must give the same."""

import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Client
from pgque_dagster.spark import SparkBatch
from pgque_dagster.spark.batch import DRIVER_SIDE_BYTES, attempt_of
from tests.support.queues.events import claim, publish, tick
from tests.support.spark.attempts import BatchOf


def test_events_are_those_of_the_batch(client: Client, spark: SparkSession, way: str) -> None:
    tick(client)
    empty = SparkBatch(spark, claim(client), client.url)
    assert empty.events().count() == 0
    assert empty.payload("id bigint").columns == ["id"]
    empty.claim.ack()
    ids = publish(client, ["a", "b", "c"])
    batch = SparkBatch(spark, claim(client), client.url)

    rows = batch.events().orderBy("ev_id").collect()

    assert batch.event_count == 3
    assert [(row.ev_id, row.ev_data) for row in rows] == list(zip(ids, "abc", strict=True))


def test_a_batch_does_not_show_the_password_of_its_database(
    client: Client, spark: SparkSession
) -> None:
    publish(client, ["a"])
    batch = SparkBatch(spark, claim(client), "postgresql://reader:s3cret@db/shop")

    public = [getattr(batch, name) for name in dir(batch) if not name.startswith("_")]

    assert "s3cret" not in repr([attempt_of(batch), *public])


def test_few_events_with_large_texts_are_read_by_executors(
    batch_of: BatchOf, capfd: pytest.CaptureFixture[str]
) -> None:
    large = "x" * (DRIVER_SIDE_BYTES // 2)
    for other, by_driver in (("small", True), (large, False)):
        batch = batch_of(large, other)
        events = batch.events()

        events.explain()
        assert ("LocalTableScan" in capfd.readouterr().out) == by_driver
        assert sorted(len(row.ev_data) for row in events.collect()) == sorted(
            [len(large), len(other)]
        )
        batch.claim.ack()
