"""A Postgres sink whose merge loses against another transaction stores nothing, and says so."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster.client import Batch, Client, TransactionOutdated
from pgque_dagster.spark import PostgresSink, SparkBatch
from tests.conftest import Server
from tests.support.databases import empty_database
from tests.support.events import claim, publish
from tests.support.queues import connect, rows, value

PATIENCE_SECONDS = 120
TABLE = "create table balance (account text primary key, amount bigint not null)"
SERIALIZABLE = "alter database {} set default_transaction_isolation = 'serializable'"


def prepare(url: str) -> None:
    """A table with a row, in a database that wants its transactions serializable."""
    with connect(url) as db:
        name = value(db, "select quote_ident(current_database())")
        db.execute(SERIALIZABLE.format(name).encode())
        db.execute(TABLE.encode())
        db.execute(b"insert into balance values ('x', 5)")


@pytest.fixture
def elsewhere(server: Server) -> Iterator[str]:
    with empty_database(server) as url:
        prepare(url)
        yield url


@pytest.fixture
def own(client: Client) -> Iterator[Client]:
    """A client whose connection is of after the change."""
    publish(client, ["a"])
    prepare(client.url)
    with Client(client.url) as strict:
        yield strict


@contextmanager
def another_writer(url: str) -> Iterator[None]:
    """Changes the row, and commits as soon as somebody waits for it."""

    def change() -> None:
        with connect(url) as db, db.transaction():
            db.execute("set transaction isolation level read committed")
            db.execute("update balance set amount = amount + 100")
            ready.append(True)
            deadline = time.monotonic() + PATIENCE_SECONDS
            waiting = (
                "select count(*) from pg_locks l join pg_stat_activity a using (pid)"
                " where not l.granted and a.datname = current_database()"
            )
            while not value(db, waiting):
                assert time.monotonic() < deadline, "nobody waits"
                db.execute("select pg_stat_clear_snapshot()")
                time.sleep(0.05)

    ready: list[bool] = []
    with ThreadPoolExecutor(1) as threads:
        changed = threads.submit(change)
        while not ready and not changed.done():
            time.sleep(0.01)
        yield
        changed.result()


def balances(url: str) -> list[tuple[Any, ...]]:
    with connect(url) as db:
        return rows(db, "select account, amount from balance order by 1")


def attempt(client: Client, spark: SparkSession) -> tuple[Batch, SparkBatch, DataFrame]:
    batch = claim(client)
    frame = spark.createDataFrame([("x", 1), ("y", 2)], "account string, amount bigint")
    return batch, SparkBatch(spark, batch, client.url), frame


def test_an_ack_that_loses_against_another_writer_can_be_made_again(
    own: Client, spark: SparkSession
) -> None:
    sink = PostgresSink("balance", key=["account"], mode="add")
    batch, spark_batch, frame = attempt(own, spark)
    sink.write(spark_batch, frame)

    with another_writer(own.url), pytest.raises(TransactionOutdated) as caught:
        batch.ack()

    assert "add into" in str(caught.value) and "concurrent update" in str(caught.value)
    assert balances(own.url) == [("x", 105)]
    batch.ack()
    assert balances(own.url) == [("x", 106), ("y", 2)]
    assert own.next_batch("orders", "revenue") is None


def test_after_a_conflict_the_next_attempt_at_the_batch_counts_once(
    own: Client, spark: SparkSession
) -> None:
    sink = PostgresSink("balance", key=["account"], mode="add")
    batch, spark_batch, frame = attempt(own, spark)
    sink.write(spark_batch, frame)
    with another_writer(own.url), pytest.raises(TransactionOutdated):
        batch.ack()
    batch.release()

    batch, spark_batch, frame = attempt(own, spark)
    sink.write(spark_batch, frame)
    batch.ack()

    assert balances(own.url) == [("x", 106), ("y", 2)]


def test_elsewhere_a_conflict_stores_nothing_and_the_next_attempt_counts_once(
    client: Client, spark: SparkSession, elsewhere: str
) -> None:
    publish(client, ["a"])
    sink = PostgresSink("balance", key=["account"], mode="add", url=elsewhere)
    batch, spark_batch, frame = attempt(client, spark)

    with another_writer(elsewhere), pytest.raises(TransactionOutdated, match="concurrent update"):
        sink.write(spark_batch, frame)

    assert balances(elsewhere) == [("x", 105)]
    batch.release()
    batch, spark_batch, frame = attempt(client, spark)
    sink.write(spark_batch, frame)
    batch.ack()
    assert balances(elsewhere) == [("x", 106), ("y", 2)]
