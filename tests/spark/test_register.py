"""`format("pgque")` is known where `register` was called: in any thread, to any session."""

from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import SparkSession

from pgque_dagster.client import Client
from pgque_dagster.spark import SparkBatch, register
from tests.support.events import claim, publish, tick


def publish_rows(session: SparkSession, client: Client) -> None:
    register(session)
    rows = session.range(3).selectExpr("string(id) as data")
    rows.write.format("pgque").options(url=client.url, queue="orders").mode("append").save()


def test_a_thread_writes_with_the_session_that_it_registered_last(
    client: Client, spark: SparkSession
) -> None:
    other = spark.newSession()
    for sessions in ((spark,), (other,), (other, spark)):
        with ThreadPoolExecutor(1) as thread:
            for session in sessions:
                thread.submit(publish_rows, session, client).result(120)
        tick(client)
        batch = claim(client)
        found = sorted(event.payload or "" for event in batch.events())
        assert found == sorted(["0", "1", "2"] * len(sessions))
        batch.ack()


def test_a_thread_reads_batches(client: Client, spark: SparkSession, way: str) -> None:
    publish(client, ["a", "b"])
    batch = SparkBatch(spark.newSession(), claim(client), client.url)

    with ThreadPoolExecutor(1) as thread:
        rows = thread.submit(lambda: batch.events().collect()).result(120)

    assert sorted(row.ev_data for row in rows) == ["a", "b"]
