"""A lease that is lost while Spark stores the batch: the job is cancelled."""

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pgque_dagster.client import BatchNotOpen, Client, LeaseLost, lease
from pgque_dagster.spark import PostgresSink, SparkBatch
from tests.support.queues.events import claim, publish
from tests.support.queues.sql import connect, rows
from tests.support.runner.waiting import in_threads, wait_until
from tests.support.spark.stored_tables import TABLES

PATIENCE_SECONDS = 120


@pytest.fixture(autouse=True)
def renews_often(monkeypatch: pytest.MonkeyPatch) -> None:
    made = lease.LeaseKeeper.__init__

    def make(keeper: Any, *arguments: Any) -> None:
        made(keeper, *arguments)
        keeper._period = 0.1

    monkeypatch.setattr(lease.LeaseKeeper, "__init__", make)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.slow) if table.is_on_s3 else kind
        for kind, table in TABLES.items()
    ],
)
def test_the_job_is_cancelled_once_another_attempt_has_the_batch(
    client: Client, spark: SparkSession, tmp_path: Path, location: str, kind: str
) -> None:
    def store(batch: SparkBatch, frame: DataFrame) -> None:
        TABLES[kind].write(batch, frame, location)

    loses_its_lease_while_it_stores(client, spark, tmp_path, store, lambda: claim(client))

    later = SparkBatch(spark, claim(client), client.url)
    store(later, later.payload("number bigint").withColumn("writer", f.lit(2)))
    assert TABLES[kind].rows(location) == [(1, 2)]


@pytest.mark.parametrize(
    ("take_over", "error"),
    # A renewal between the claim and its ack finds another owner.
    [
        (claim, LeaseLost),
        pytest.param(
            lambda client: claim(client).ack(), (BatchNotOpen, LeaseLost), marks=pytest.mark.slow
        ),
    ],
    ids=["another attempt", "an ack"],
)
def test_the_job_that_fills_a_table_of_postgresql_is_cancelled(
    client: Client,
    spark: SparkSession,
    tmp_path: Path,
    take_over: Callable[[Client], object],
    error: type[Exception] | tuple[type[Exception], ...],
) -> None:
    with connect(client.url) as db:
        db.execute("create table taken (number bigint, writer bigint)")

    loses_its_lease_while_it_stores(
        client, spark, tmp_path, PostgresSink("taken").write, lambda: take_over(client), error
    )

    with connect(client.url) as db:
        assert rows(db, "select * from taken") == []


def loses_its_lease_while_it_stores(
    client: Client,
    spark: SparkSession,
    folder: Path,
    store: Callable[[SparkBatch, DataFrame], object],
    take_over: Callable[[], object],
    error: type[Exception] | tuple[type[Exception], ...] = LeaseLost,
) -> None:
    """Takes a batch over while a task of its attempt works, which would go on for a long time."""
    publish(client, [{"number": 1}])
    begun, ended = folder / "begun", folder / "ended"
    claimed = client.claim("orders", "revenue", owner="a test", ttl=timedelta(minutes=1))
    assert claimed is not None

    def taking_over() -> None:
        wait_until(begun.exists)
        take_over()

    with in_threads(taking_over), claimed.keep_alive(), pytest.raises(error):
        store(SparkBatch(spark, claimed, client.url), slow(spark, begun, ended))

    assert not ended.exists()


def slow(spark: SparkSession, begun: Path, ended: Path) -> DataFrame:
    def number(of_row: int) -> int:
        begun.touch()
        time.sleep(PATIENCE_SECONDS)
        ended.touch()
        return of_row

    reached = f.udf(number, "bigint").asNondeterministic()
    return spark.range(1).select(reached("id").alias("number"), f.lit(1).alias("writer"))
