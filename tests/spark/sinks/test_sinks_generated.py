"""Columns that Postgres makes by itself, in the target of a sink."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Batch, Client, InvalidArgument
from pgque_dagster.spark import PostgresSink, SparkBatch
from tests.support.events import claim, publish
from tests.support.queues import connect, rows

TABLE = (
    "create table balance (account text primary key, amount bigint not null,"
    " twice bigint generated always as (amount * 2) stored,"
    " nr int generated always as identity, made text default 'by default')"
)


@pytest.fixture
def claimed(client: Client) -> Batch:
    with connect(client.url) as db:
        db.execute(TABLE.encode())
        db.execute("insert into balance (account, amount) values ('x', 5)")
    publish(client, ["a"])
    return claim(client)


@pytest.mark.parametrize(("mode", "amount"), [("upsert", 1), ("add", 6)])
def test_generated_columns_follow_what_is_merged(
    client: Client, spark: SparkSession, claimed: Batch, mode: Any, amount: int
) -> None:
    frame = spark.createDataFrame([("x", 1), ("y", 2)], "account string, amount bigint")

    PostgresSink("balance", key=["account"], mode=mode).write(
        SparkBatch(spark, claimed, client.url), frame
    )
    claimed.ack()

    with connect(client.url) as db:
        found = rows(db, "select account, amount, twice, nr > 0, made from balance order by 1")
    assert found == [
        ("x", amount, 2 * amount, True, "by default"),
        ("y", 2, 4, True, "by default"),
    ]


@pytest.mark.parametrize("column", ["twice", "nr"])
def test_a_column_for_a_generated_one_is_refused_before_spark_works(
    client: Client, spark: SparkSession, claimed: Batch, column: str
) -> None:
    frame = spark.range(1).selectExpr(
        "'y' as account", "bigint(1) as amount", f"int(raise_error('Spark works')) as {column}"
    )

    with pytest.raises(InvalidArgument, match=f'column "{column}"'):
        PostgresSink("balance").write(SparkBatch(spark, claimed, client.url), frame)

    with connect(client.url) as db:
        assert rows(db, "select account from balance") == [("x",)]
        assert rows(db, "select from pg_class where relname ~ '^pgque_stage_'") == []
