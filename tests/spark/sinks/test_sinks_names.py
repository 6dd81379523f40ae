"""Two writes of one batch, or of one micro-batch, to one table: refused, or told apart by names."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster.client import Batch, Client, InvalidArgument
from pgque_dagster.spark import SparkBatch
from pgque_dagster.spark.sinks import PostgresSink, once_per_batch
from tests.conftest import Server
from tests.support.databases import empty_database
from tests.support.events import claim, publish
from tests.support.queues import Connection, connect, rows

TABLE = "create table balance (account text primary key, amount numeric not null)"
ADD: dict[str, Any] = {"key": ["account"], "mode": "add"}
SECOND = "was written to public.balance before"
Foreach = Callable[[DataFrame, int], None]


@pytest.fixture
def url(server: Server, client: Client) -> Iterator[str]:
    """Another database than the queue's, with a table; the queue has a batch."""
    publish(client, ["a"])
    with empty_database(server) as elsewhere:
        for each in (elsewhere, client.url):
            with connect(each) as db:
                db.execute(TABLE.encode())
        yield elsewhere


def attempt(client: Client, spark: SparkSession) -> tuple[Batch, SparkBatch]:
    batch = claim(client)
    return batch, SparkBatch(spark, batch, client.url)


def amounts(spark: SparkSession, amount: int) -> DataFrame:
    return spark.createDataFrame([("x", amount)], "account string, amount int")


def balance(url: str) -> list[tuple[Any, ...]]:
    with connect(url) as db:
        return rows(db, "select account, amount::int from balance")


@pytest.mark.parametrize("second", ["balance", "public.balance", 'public."balance"', "BALANCE"])
def test_a_second_write_is_refused_whatever_the_tables_spelling(
    client: Client, spark: SparkSession, url: str, second: str
) -> None:
    for address in (url, None):
        _, batch = attempt(client, spark)
        PostgresSink("balance", url=address, **ADD).write(batch, amounts(spark, 5))

        with pytest.raises(InvalidArgument, match=SECOND) as refused:
            PostgresSink(second, url=address, **ADD).write(batch, amounts(spark, 7))
        batch.claim.release()

        assert "name=" in str(refused.value)
    assert balance(url) == [("x", 5)]


def test_a_second_write_is_refused_when_the_database_has_another_address(
    client: Client, spark: SparkSession, url: str
) -> None:
    _, batch = attempt(client, spark)
    PostgresSink("balance", url=url, **ADD).write(batch, amounts(spark, 5))

    sign = "&" if "?" in url else "?"
    for other in ("options=-csearch_path%3Dpublic", "options=-ctimezone%3DAsia/Tokyo"):
        with pytest.raises(InvalidArgument, match=SECOND):
            PostgresSink("balance", url=f"{url}{sign}{other}", **ADD).write(
                batch, amounts(spark, 7)
            )


def test_tables_of_one_name_in_two_schemas_are_two(
    client: Client, spark: SparkSession, url: str
) -> None:
    with connect(url) as db:
        db.execute("create schema other")
        db.execute(TABLE.replace("balance", "other.balance").encode())
    _, batch = attempt(client, spark)

    PostgresSink("balance", url=url, **ADD).write(batch, amounts(spark, 5))
    PostgresSink("other.balance", url=url, **ADD).write(batch, amounts(spark, 7))

    with connect(url) as db:
        assert rows(db, "select sum(amount)::int from other.balance") == [(7,)]


def test_names_tell_writes_apart_and_each_counts_once(
    client: Client, spark: SparkSession, url: str
) -> None:
    for _ in range(2):
        batch, spark_batch = attempt(client, spark)
        for address in (url, None):
            for name, amount in (("debits", 5), ("credits", 7), (None, 100)):
                PostgresSink("balance", url=address, name=name, **ADD).write(
                    spark_batch, amounts(spark, amount)
                )
        if _:
            batch.ack()
        else:
            batch.release()

    assert balance(url) == [("x", 112)]
    assert balance(client.url) == [("x", 112)]


def test_a_later_attempt_is_refused_as_well_until_the_second_write_has_a_name(
    client: Client, spark: SparkSession, url: str
) -> None:
    first = PostgresSink("balance", url=url, **ADD)
    for _ in range(2):
        batch, spark_batch = attempt(client, spark)
        first.write(spark_batch, amounts(spark, 5))
        with pytest.raises(InvalidArgument, match=SECOND):
            PostgresSink("balance", url=url, **ADD).write(spark_batch, amounts(spark, 7))
        batch.release()

    batch, spark_batch = attempt(client, spark)
    first.write(spark_batch, amounts(spark, 5))
    PostgresSink("balance", url=url, name="credits", **ADD).write(spark_batch, amounts(spark, 7))
    batch.ack()

    assert balance(url) == [("x", 12)]


def test_a_write_that_failed_may_be_done_again_in_the_same_attempt(
    client: Client, spark: SparkSession, url: str
) -> None:
    batch, spark_batch = attempt(client, spark)
    broken = spark.sql("select 'x' as account, int(raise_error('broken')) as amount")
    for address in (url, None):
        sink = PostgresSink("balance", url=address, **ADD)
        with pytest.raises(PySparkException, match="broken"):
            sink.write(spark_batch, broken)
        sink.write(spark_batch, amounts(spark, 5))
    batch.ack()

    assert balance(url) == balance(client.url) == [("x", 5)]


def stream(spark: SparkSession, folder: Path, foreach: Foreach, amount: int | None = None) -> None:
    """Runs a query over what came; something comes now if there is an amount."""
    arriving = folder / "in"
    arriving.mkdir(exist_ok=True)
    if amount is not None:
        text = json.dumps({"account": "x", "amount": amount})
        (arriving / str(len(list(arriving.iterdir())))).write_text(text)
    query = (
        spark.readStream.schema("account string, amount bigint")
        .json(str(arriving))
        .writeStream.foreachBatch(foreach)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)


def committed(folder: Path) -> list[str]:
    """The micro-batches that the checkpoint has as done."""
    commits = folder / "checkpoint" / "commits"
    return sorted(path.name for path in commits.iterdir() if path.name.isdigit())


def forget_last_commit(folder: Path) -> None:
    """As if the driver was killed after the effect, before Spark wrote its checkpoint."""
    last = committed(folder)[-1]
    (folder / "checkpoint" / "commits" / last).unlink()
    (folder / "checkpoint" / "commits" / f".{last}.crc").unlink()


def both(first: Foreach, second: Foreach) -> Foreach:
    """Has both do something with a micro-batch, one after the other."""

    def write(frame: DataFrame, batch_id: int) -> None:
        first(frame, batch_id)
        second(frame, batch_id)

    return write


def test_a_stream_that_writes_twice_under_one_name_fails_and_stays_where_it_is(
    url: str, spark: SparkSession, tmp_path: Path
) -> None:
    debits = PostgresSink("balance", url=url, **ADD)
    credits = PostgresSink("public.balance", url=url, **ADD)
    for amount in (5, None):
        with pytest.raises(PySparkException, match=SECOND):
            stream(spark, tmp_path, both(debits.foreach_batch(), credits.foreach_batch()), amount)
        assert committed(tmp_path) == []

    named = PostgresSink("balance", url=url, name="credits", **ADD)
    stream(spark, tmp_path, both(debits.foreach_batch(), named.foreach_batch()))

    assert committed(tmp_path) == ["0"]
    assert balance(url) == [("x", 10)]


def test_a_named_write_of_a_micro_batch_that_spark_repeats_counts_once(
    url: str, spark: SparkSession, tmp_path: Path
) -> None:
    def foreach() -> Foreach:
        named = PostgresSink("balance", url=url, name="credits", **ADD)
        return both(PostgresSink("balance", url=url, **ADD).foreach_batch(), named.foreach_batch())

    stream(spark, tmp_path, foreach(), 5)
    forget_last_commit(tmp_path)

    stream(spark, tmp_path, foreach(), 100)

    assert balance(url) == [("x", 210)]


def test_two_effects_of_one_name_are_refused(url: str, spark: SparkSession, tmp_path: Path) -> None:
    def effect(amount: int) -> Callable[[DataFrame, int, Connection], None]:
        def apply(frame: DataFrame, batch_id: int, connection: Connection) -> None:
            connection.execute("insert into balance values (%s, %s)", (str(amount), amount))

        return apply

    first = once_per_batch(url, "balances", effect(1))
    with pytest.raises(PySparkException, match="was written to balances before"):
        stream(spark, tmp_path, both(first, once_per_batch(url, "balances", effect(2))), 5)
    stream(spark, tmp_path, both(first, once_per_batch(url, "more", effect(2))))

    assert sorted(balance(url)) == [("1", 1), ("2", 2)]
