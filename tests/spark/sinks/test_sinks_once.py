"""Micro-batches of Structured Streaming in Postgres: each counts once."""

import shutil
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster.client import InvalidArgument
from pgque_dagster.spark.sinks import PostgresSink, once_per_batch
from pgque_dagster.spark.sinks.ledger import Connection
from tests.support.queues import connect, rows

TABLE = "create table balance (account bigint primary key, amount numeric)"


@pytest.fixture
def url(database_url: str) -> str:
    with connect(database_url) as db:
        db.execute(TABLE)
    return database_url


def run(spark: SparkSession, folder: Path, foreach: Any, checkpoint: str = "checkpoint") -> None:
    """Runs a query over the files that came since the last time."""
    query = (
        spark.readStream.schema("account bigint, amount bigint")
        .json(str(folder / "in"))
        .writeStream.foreachBatch(foreach)
        .option("checkpointLocation", str(folder / checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)


def arrive(folder: Path, name: str, *lines: str) -> None:
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / name).write_text("\n".join(lines))


def forget_last_commit(folder: Path) -> None:
    """As if the driver was killed after the effect, before Spark wrote its checkpoint."""
    commits = folder / "checkpoint" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink()


def balances(url: str) -> list[tuple[Any, ...]]:
    with connect(url) as db:
        return rows(db, "select account, amount::int from balance order by 1")


def test_a_micro_batch_that_spark_repeats_counts_once(
    url: str, spark: SparkSession, tmp_path: Path
) -> None:
    sink = PostgresSink("balance", key=["account"], mode="add", url=url)
    arrive(tmp_path, "1", '{"account": 1, "amount": 5}', '{"account": 1, "amount": 2}')
    run(spark, tmp_path, sink.foreach_batch())
    forget_last_commit(tmp_path)
    arrive(tmp_path, "2", '{"account": 1, "amount": 10}')

    run(spark, tmp_path, sink.foreach_batch())

    assert balances(url) == [(1, 17)]


def test_another_checkpoint_is_another_stream(
    url: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Its micro-batches count from 0 again, and must not be taken for the first one's."""
    sink = PostgresSink("balance", key=["account"], mode="add", url=url)
    arrive(tmp_path, "1", '{"account": 1, "amount": 5}')
    run(spark, tmp_path, sink.foreach_batch())
    shutil.rmtree(tmp_path / "checkpoint")

    run(spark, tmp_path, sink.foreach_batch())

    assert balances(url) == [(1, 10)]


def test_an_effect_of_ones_own_happens_once(url: str, spark: SparkSession, tmp_path: Path) -> None:
    def add(frame: DataFrame, batch_id: int, connection: Connection) -> None:
        count = frame.count()
        connection.execute("insert into balance values (%s, %s)", (batch_id, count))

    arrive(tmp_path, "1", '{"account": 1}', '{"account": 2}')
    run(spark, tmp_path, once_per_batch(url, "counts", add))
    forget_last_commit(tmp_path)

    run(spark, tmp_path, once_per_batch(url, "counts", add))

    assert balances(url) == [(0, 2)]


def test_an_effect_that_fails_leaves_nothing_and_is_tried_again(
    url: str, spark: SparkSession, tmp_path: Path
) -> None:
    def fail(frame: DataFrame, batch_id: int, connection: Connection) -> None:
        connection.execute("insert into balance values (1, 1)")
        raise RuntimeError("half done")

    def succeed(frame: DataFrame, batch_id: int, connection: Connection) -> None:
        connection.execute("insert into balance values (2, 2)")

    arrive(tmp_path, "1", '{"account": 1}')
    with pytest.raises(PySparkException, match="half done"):
        run(spark, tmp_path, once_per_batch(url, "any", fail))
    run(spark, tmp_path, once_per_batch(url, "any", succeed))

    assert balances(url) == [(2, 2)]


@pytest.mark.parametrize("fault", ["raise", "raw end", "commit", "rollback"])
def test_an_effect_in_a_transaction_block_is_part_of_the_whole(
    url: str, spark: SparkSession, tmp_path: Path, fault: str
) -> None:
    """The block is a savepoint: it commits with the ledger's row, or not at all."""

    def add(frame: DataFrame, batch_id: int, connection: Connection) -> None:
        with connection.transaction():
            connection.execute("insert into balance values (1, 1)")
        if fault == "raise":
            raise RuntimeError("half done")
        if fault == "commit":
            connection.commit()
        if fault == "raw end":
            connection.execute("rollback")
        if fault == "rollback":
            raise psycopg.Rollback

    told = {
        "raise": "half done",
        "commit": r"commit\(\) forbidden",
        "raw end": "effect any ended the transaction",
        "rollback": "effect any ended the transaction",
    }
    arrive(tmp_path, "1", '{"account": 1}')
    with pytest.raises(PySparkException, match=told[fault]):
        run(spark, tmp_path, once_per_batch(url, "any", add))
    assert balances(url) == []

    fault = ""
    run(spark, tmp_path, once_per_batch(url, "any", add))
    forget_last_commit(tmp_path)
    run(spark, tmp_path, once_per_batch(url, "any", add))

    assert balances(url) == [(1, 1)]


def test_two_drivers_at_one_micro_batch_count_once(url: str, spark: SparkSession) -> None:
    frame = spark.range(1)
    context = spark.sparkContext

    def add(frame: DataFrame, batch_id: int, connection: Connection) -> None:
        if batch_id == 0 and not done:
            done.append(True)
            context.setLocalProperty("spark.jobGroup.id", "a run of the other driver")
            once_per_batch(url, "any", add, query="q")(frame, 0)
            context.setLocalProperty("spark.jobGroup.id", "a run")
        connection.execute("insert into balance values (7, 7) on conflict do nothing")
        connection.execute("update balance set amount = amount + 1")

    done: list[bool] = []
    context.setLocalProperty("spark.jobGroup.id", "a run")
    once_per_batch(url, "any", add, query="q")(frame, 0)
    context.setLocalProperty("spark.jobGroup.id", None)

    assert balances(url) == [(7, 8)]


def test_a_frame_of_no_stream_needs_a_query(url: str, spark: SparkSession) -> None:
    with pytest.raises(InvalidArgument, match="not a micro-batch of a streaming query"):
        once_per_batch(url, "any", lambda *_: None)(spark.range(1), 0)
    with pytest.raises(InvalidArgument, match="needs the url"):
        PostgresSink("balance").foreach_batch()
