"""Micro-batches of Structured Streaming in Postgres: each counts once under each name."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster.client import InvalidArgument
from pgque_dagster.spark.sinks import PostgresSink, once_per_batch
from pgque_dagster.spark.sinks.ledger import Connection
from tests.conftest import Server
from tests.support.databases import empty_database
from tests.support.queues import connect, rows

TABLE = "create table balance (account text primary key, amount numeric not null)"
ADD: dict[str, Any] = {"key": ["account"], "mode": "add"}
Foreach = Callable[[DataFrame, int], None]


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    with empty_database(server) as made:
        with connect(made) as db:
            db.execute(TABLE)
        yield made


class Arriving:
    """Files that come to a folder, and a query over them that is run again and again."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        (folder / "in").mkdir()

    def run(self, foreach: Foreach, amount: int | None = None) -> None:
        """Runs the query over what came; something comes now if there is an amount."""
        arriving = self.folder / "in"
        if amount is not None:
            text = json.dumps({"account": "x", "amount": amount})
            (arriving / str(len(list(arriving.iterdir())))).write_text(text)
        query = (
            self.spark.readStream.schema("account string, amount bigint")
            .json(str(arriving))
            .writeStream.foreachBatch(foreach)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)

    def committed(self) -> list[str]:
        """The micro-batches that the checkpoint has as done."""
        commits = self.folder / "checkpoint" / "commits"
        return sorted(path.name for path in commits.iterdir() if path.name.isdigit())

    def forget_last_commit(self) -> None:
        """As if the driver was killed after the effect, before Spark wrote its checkpoint."""
        last = self.committed()[-1]
        for name in (last, f".{last}.crc"):
            (self.folder / "checkpoint" / "commits" / name).unlink()


@pytest.fixture
def arriving(spark: SparkSession, tmp_path: Path) -> Arriving:
    return Arriving(spark, tmp_path)


def balances(url: str) -> list[tuple[Any, ...]]:
    with connect(url) as db:
        return rows(db, "select account, amount::int from balance order by 1")


def insert(account: object) -> Callable[[DataFrame, int, Connection], None]:
    """An effect that adds a row."""

    def apply(frame: DataFrame, batch_id: int, connection: Connection) -> None:
        connection.execute("insert into balance values (%s, %s)", (str(account), frame.count()))

    return apply


def both(first: Foreach, second: Foreach) -> Foreach:
    """Has both do something with a micro-batch, one after the other."""

    def write(frame: DataFrame, batch_id: int) -> None:
        first(frame, batch_id)
        second(frame, batch_id)

    return write


def test_a_micro_batch_that_spark_repeats_counts_once_under_each_name(
    url: str, arriving: Arriving
) -> None:
    def foreach() -> Foreach:
        named = PostgresSink("balance", url=url, name="credits", **ADD)
        return both(PostgresSink("balance", url=url, **ADD).foreach_batch(), named.foreach_batch())

    arriving.run(foreach(), 5)
    arriving.forget_last_commit()

    arriving.run(foreach(), 100)

    assert balances(url) == [("x", 210)]


def test_another_checkpoint_is_another_stream(url: str, arriving: Arriving) -> None:
    """Its micro-batches count from 0 again, and must not be taken for the first one's."""
    sink = PostgresSink("balance", url=url, **ADD)
    arriving.run(sink.foreach_batch(), 5)
    shutil.rmtree(arriving.folder / "checkpoint")

    arriving.run(sink.foreach_batch())

    assert balances(url) == [("x", 10)]


def test_an_effect_of_ones_own_happens_once(url: str, arriving: Arriving) -> None:
    arriving.run(once_per_batch(url, "counts", insert("x")), 5)
    arriving.forget_last_commit()

    arriving.run(once_per_batch(url, "counts", insert("x")))

    assert balances(url) == [("x", 1)]


@pytest.mark.parametrize("fault", ["fail", "raise", "raw end", "commit", "rollback"])
def test_an_effect_that_fails_leaves_nothing_and_is_tried_again(
    url: str, arriving: Arriving, fault: str
) -> None:
    """A transaction block is a savepoint: it commits with the ledger's row, or not at all."""

    def add(frame: DataFrame, batch_id: int, connection: Connection) -> None:
        if fault == "fail":
            connection.execute("insert into balance values ('half', 1)")
            raise RuntimeError("half done")
        with connection.transaction():
            connection.execute("insert into balance values ('x', 1)")
        if fault == "raise":
            raise RuntimeError("half done")
        if fault == "commit":
            connection.commit()
        if fault == "raw end":
            connection.execute("rollback")
        if fault == "rollback":
            raise psycopg.Rollback

    told = {"commit": r"commit\(\) forbidden", "fail": "half done", "raise": "half done"}
    with pytest.raises(PySparkException, match=told.get(fault, "effect any ended the transaction")):
        arriving.run(once_per_batch(url, "any", add), 5)
    assert balances(url) == []

    fault = ""
    arriving.run(once_per_batch(url, "any", add))
    arriving.forget_last_commit()
    arriving.run(once_per_batch(url, "any", add))

    assert balances(url) == [("x", 1)]


def test_two_drivers_at_one_micro_batch_count_once(url: str, spark: SparkSession) -> None:
    frame = spark.range(1)
    context = spark.sparkContext

    def add(frame: DataFrame, batch_id: int, connection: Connection) -> None:
        if batch_id == 0 and not done:
            done.append(True)
            context.setLocalProperty("spark.jobGroup.id", "a run of the other driver")
            once_per_batch(url, "any", add, query="q")(frame, 0)
            context.setLocalProperty("spark.jobGroup.id", "a run")
        connection.execute("insert into balance values ('x', 7) on conflict do nothing")
        connection.execute("update balance set amount = amount + 1")

    done: list[bool] = []
    context.setLocalProperty("spark.jobGroup.id", "a run")
    once_per_batch(url, "any", add, query="q")(frame, 0)
    context.setLocalProperty("spark.jobGroup.id", None)

    assert balances(url) == [("x", 8)]


def test_a_stream_that_writes_twice_under_one_name_fails_and_stays_where_it_is(
    url: str, arriving: Arriving
) -> None:
    debits, credits, named = (
        PostgresSink(table, url=url, name=name, **ADD).foreach_batch()
        for table, name in (("balance", None), ("public.balance", None), ("balance", "credits"))
    )
    for amount in (5, None):
        with pytest.raises(PySparkException, match=r"was written to public\.balance before"):
            arriving.run(both(debits, credits), amount)
        assert arriving.committed() == []

    arriving.run(both(debits, named))

    assert arriving.committed() == ["0"]
    assert balances(url) == [("x", 10)]


def test_two_effects_of_one_name_are_refused(url: str, arriving: Arriving) -> None:
    first = once_per_batch(url, "balances", insert(1))
    with pytest.raises(PySparkException, match="was written to balances before"):
        arriving.run(both(first, once_per_batch(url, "balances", insert(2))), 5)
    arriving.run(both(first, once_per_batch(url, "more", insert(2))))

    assert balances(url) == [("1", 1), ("2", 1)]


def test_a_frame_of_no_stream_needs_a_query(url: str, spark: SparkSession) -> None:
    with pytest.raises(InvalidArgument, match="not a micro-batch of a streaming query"):
        once_per_batch(url, "any", lambda *_: None)(spark.range(1), 0)
    with pytest.raises(InvalidArgument, match="needs the url"):
        PostgresSink("balance").foreach_batch()
