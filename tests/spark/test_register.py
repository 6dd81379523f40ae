"""`format("pgque")` is known where `register` was called: in any thread, to any session."""

import threading
from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Client
from pgque_dagster.spark import SparkBatch, register
from tests.support.events import claim, publish, tick

PATIENCE_SECONDS = 120


def in_a_thread(act: Callable[[], None]) -> None:
    """Does it in a plain thread, and raises what it raises."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


def publish_rows(session: SparkSession, client: Client) -> None:
    register(session)
    rows = session.range(3).selectExpr("string(id) as data")
    rows.write.format("pgque").options(url=client.url, queue="orders").mode("append").save()


def payloads(client: Client) -> list[str | None]:
    tick(client)
    return sorted(event.payload or "" for event in claim(client).events())


@pytest.fixture
def other_session(spark: SparkSession) -> SparkSession:
    return spark.newSession()


def test_a_thread_that_registers_can_write(client: Client, spark: SparkSession) -> None:
    in_a_thread(lambda: publish_rows(spark, client))

    assert payloads(client) == ["0", "1", "2"]


def test_a_thread_can_write_with_a_session_of_its_own(
    client: Client, other_session: SparkSession
) -> None:
    in_a_thread(lambda: publish_rows(other_session, client))

    assert payloads(client) == ["0", "1", "2"]


def test_a_thread_of_several_sessions_writes_with_the_one_it_registered_last(
    client: Client, spark: SparkSession, other_session: SparkSession
) -> None:
    def both() -> None:
        publish_rows(other_session, client)
        publish_rows(spark, client)

    in_a_thread(both)

    assert payloads(client) == ["0", "0", "1", "1", "2", "2"]


def test_a_thread_reads_batches(
    client: Client, spark: SparkSession, way: str, other_session: SparkSession
) -> None:
    publish(client, ["a", "b"])
    batch = SparkBatch(other_session, claim(client), client.url)
    found: list[str] = []

    in_a_thread(lambda: found.extend(row.ev_data for row in batch.events().collect()))

    assert sorted(found) == ["a", "b"]
