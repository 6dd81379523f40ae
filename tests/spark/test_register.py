"""`format("pgque")` is known where `register` was called: in any thread, to any session."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Client
from pgque_dagster.spark import SparkBatch, register
from tests.support.queues.events import claim, publish, tick


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


_STOPPED = """
import sys
from pgque_dagster.client import InvalidArgument
from pgque_dagster.spark import SparkBatch, clear_executor_errors, register
from pgque_dagster.spark.cluster.session import open_session
from pyspark.sql import SparkSession

def new():
    return SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()

class Resource:
    spark_session = new()

stopped = Resource.spark_session
register(stopped)
stopped.stop()
for use in (
    lambda: register(stopped),
    lambda: SparkBatch(stopped, None, ""),
    lambda: open_session(Resource),
):
    try:
        use()
    except InvalidArgument as error:
        print("told:", error)
register(new())
try:
    with clear_executor_errors():
        new().read.format("pgque").options(url=sys.argv[1], batch=1).load().count()
except InvalidArgument as error:
    print("told:", error)
options = dict(url=sys.argv[1], batch_id=sys.argv[2])
print("events", new().read.format("pgque").options(**options).load().count())
"""


@pytest.mark.slow
def test_a_stopped_session_is_told_and_the_process_goes_on_with_a_new_one(client: Client) -> None:
    client.send_batch("orders", ["a", "b"])
    tick(client)
    batch = claim(client)
    script = [sys.executable, "-c", _STOPPED, client.url, str(batch.batch_id)]
    done = subprocess.run(script, capture_output=True, text=True, check=True, timeout=300)
    *told, events = done.stdout.splitlines()
    assert [line[:36] for line in told[:3]] == ["told: this Spark session was stopped"] * 3
    assert "no option 'batch'. Did you mean batch_id?" in told[3]
    assert events == "events 2"
