"""The IO managers: storing a batch again changes nothing, whatever attempt died before."""

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster import (
    ParquetBatchIOManager,
    PgqueResource,
    PostgresBatchIOManager,
    SparkBatch,
    pgque_asset,
)
from pgque_dagster.client import Client
from tests.dagster.support import materialize
from tests.support.asset_driver import BALANCE, POINTS, run
from tests.support.events import make_queue, publish
from tests.support.queues import connect, rows

ROOT = Path(__file__).parents[3]
PATIENCE_SECONDS = 240


@pytest.fixture
def client(database_url: str) -> Iterator[Client]:
    with Client(database_url) as client:
        make_queue(client)
        with connect(database_url) as db:
            db.execute(BALANCE.encode())
        yield client


def publish_amounts(client: Client) -> Counter[str]:
    oracle: Counter[str] = Counter()
    for number in range(20):
        oracle[f"account {number % 3}"] += number
    publish(client, [{"account": f"account {n % 3}", "amount": n} for n in range(20)])
    return oracle


def balances(client: Client) -> Counter[str]:
    with connect(client.url) as db:
        return Counter(dict(rows(db, "select account, amount::int from balance")))


def stages(client: Client) -> list[Any]:
    with connect(client.url) as db:
        return rows(db, "select relname::text from pg_class where relname ~ '^pgque_stage_'")


def silent(point: str) -> None:
    """Does nothing at each point."""


def dying_at(point: str) -> Callable[[str], None]:
    def at(reached: str) -> None:
        if reached == point:
            raise OSError(f"died {point}")

    return at


@pytest.mark.parametrize("point", [point for point in POINTS if point != "after the ack"])
def test_each_event_counts_once_in_postgres_when_a_run_fails_at_any_point(
    client: Client, spark: SparkSession, point: str
) -> None:
    oracle = publish_amounts(client)

    failed = run(spark, client.url, dying_at(point))
    before = balances(client)
    again = run(spark, client.url, silent)

    assert not failed.success
    assert before == Counter()
    assert again.success
    assert balances(client) == oracle
    assert client.next_batch("orders", "revenue") is None


@pytest.mark.parametrize(
    "point",
    [
        # Each starts its own Spark, so only one of them runs by default.
        point if point == "after staging" else pytest.param(point, marks=pytest.mark.slow)
        for point in POINTS
    ],
)
def test_each_event_counts_once_in_postgres_when_the_run_is_killed(
    client: Client, spark: SparkSession, point: str
) -> None:
    oracle = publish_amounts(client)

    died = subprocess.run(
        [sys.executable, "-m", "tests.support.asset_driver", client.url, point],
        cwd=ROOT,
        timeout=PATIENCE_SECONDS,
    )
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (lease := client.lease_info("orders", "revenue")) and lease.is_live:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    run(spark, client.url, silent)

    assert died.returncode == -signal.SIGKILL
    assert balances(client) == oracle
    assert client.next_batch("orders", "revenue") is None
    assert stages(client) == []


def test_a_table_has_the_name_that_the_asset_gives_and_is_read_downstream(
    client: Client, spark: SparkSession
) -> None:
    oracle = publish_amounts(client)
    read: list[Any] = []

    @pgque_asset(
        queue="orders",
        consumer="revenue",
        metadata={"dagster/table_name": "public.balance"},
        io_manager_key="balances",
    )
    def sums(batch: SparkBatch) -> DataFrame:
        totals = batch.payload("account string, amount bigint").groupBy("account").sum("amount")
        return totals.toDF("account", "amount")

    @dg.asset
    def downstream(sums: DataFrame) -> None:
        read.extend(sums.collect())

    pgque = PgqueResource(url=client.url)
    result = materialize(
        sums,
        client.url,
        spark,
        others=(downstream,),
        resources={"balances": PostgresBatchIOManager(pgque=pgque, mode="upsert", key=["account"])},
    )
    (event,) = result.asset_materializations_for_node("sums")

    assert result.success
    assert Counter({row.account: row.amount for row in read}) == oracle
    assert event.metadata["pgque/rows"].value == 3
    assert "dagster/row_count" not in event.metadata
    assert event.metadata["dagster/table_name"].value == "public.balance"


@pytest.mark.parametrize("payloads", [["a", "b"], []])
def test_parquet_tells_its_rows_and_where_they_are(
    client: Client, spark: SparkSession, tmp_path: Path, payloads: list[str]
) -> None:
    publish(client, payloads or ["left out"])

    @pgque_asset(queue="orders", consumer="revenue")
    def events(batch: SparkBatch) -> DataFrame:
        found = batch.events(["ev_data"])
        return found if payloads else found.where("false")

    manager = ParquetBatchIOManager(base_dir=str(tmp_path))
    result = materialize(events, client.url, spark, io_manager=manager)
    (event,) = result.asset_materializations_for_node("events")
    batch_id = event.metadata["pgque/batch_id"].value

    assert result.success
    assert event.metadata["pgque/rows"].value == len(payloads)
    assert "dagster/row_count" not in event.metadata
    batch_folder = tmp_path / "events" / f"batch_id={batch_id}"
    assert str(event.metadata["path"].value).startswith(f"{batch_folder}/publication-1/epoch-1.")


@pytest.mark.parametrize("kind", ["parquet", "postgres"])
def test_what_is_no_dataframe_of_a_batch_is_refused(
    client: Client, spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    publish(client, ["a"])
    manager: dg.IOManager = (
        ParquetBatchIOManager(base_dir=str(tmp_path))
        if kind == "parquet"
        else PostgresBatchIOManager(pgque=PgqueResource(url=client.url))
    )

    @pgque_asset(queue="orders", consumer="revenue")
    def number(batch: SparkBatch) -> int:
        return 1

    @dg.asset
    def stranger() -> int:
        return 1

    wrong = materialize(number, client.url, spark, io_manager=manager)
    foreign = materialize(stranger, client.url, spark, io_manager=manager)
    lease = client.lease_info("orders", "revenue")

    assert "number returned int" in failure_of(wrong)
    assert "stranger is not computed from a batch" in failure_of(foreign)
    assert lease is not None and not lease.is_live


def failure_of(result: dg.ExecuteInProcessResult) -> str:
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    return str(failure.step_failure_data.error)


def test_a_directory_of_another_database_is_refused_and_the_batch_stays(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    publish(client, ["a"])
    mark = tmp_path / "events" / "_pgque" / "lineages" / "5e0b40d3-0000-4000-8000-000000000000"
    mark.mkdir(parents=True)

    @pgque_asset(queue="orders", consumer="revenue")
    def events(batch: SparkBatch) -> DataFrame:
        return batch.events(["ev_data"])

    manager = ParquetBatchIOManager(base_dir=str(tmp_path))
    result = materialize(events, client.url, spark, io_manager=manager)

    assert f"lineage {mark.name}" in failure_of(result)
    assert "Write to another directory" in failure_of(result)
    assert client.next_batch("orders", "revenue") is not None
