"""Runs that no sensor requested, and consumers that are not what a run expects."""

import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import SparkBatch, build_pgque_sensor, pgque_asset
from pgque_dagster.client import Batch, Client, Limits
from pgque_dagster.client.cooperative import claim_shared, register_subconsumer
from pgque_dagster.consumers import consumers_of
from tests.dagster.support import StoringIOManager, materialize
from tests.support.events import publish
from tests.support.sensing import evaluate, the_request


@pgque_asset(queue="orders")
def revenue(batch: SparkBatch) -> list[str]:
    return sorted(row.ev_data for row in batch.events().collect())


def share(client: Client, *parts: str) -> None:
    for part in parts:
        client.run(register_subconsumer("orders", "revenue", part))


def claim_part(client: Client, part: str) -> Batch:
    batch = claim_shared(
        client,
        "orders",
        "revenue",
        part,
        owner="another run",
        ttl=timedelta(minutes=5),
        limits=Limits(max_count=1),
    )
    assert batch is not None
    return batch


def by_hand(
    client: Client, spark: SparkSession, asset: dg.AssetsDefinition = revenue
) -> list[list[str]]:
    """Returns what a run without tags stores."""
    store = StoringIOManager()
    assert materialize(asset, client.url, spark, io_manager=store).success
    return store.stored


def test_a_run_by_hand_takes_the_next_batch_of_a_shared_consumer(
    client: Client, spark: SparkSession
) -> None:
    share(client, "1", "2")
    publish(client, ["a", "b"])

    first = by_hand(client, spark)
    second = by_hand(client, spark)

    assert (first, second) == ([["a", "b"]], [])


def test_a_run_without_a_batch_says_how_many_events_wait_for_a_tick(
    client: Client, spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    assert by_hand(client, spark) == []
    assert "Skipped: orders/revenue has no batch yet.\n" in capfd.readouterr().err
    client.send("orders", "a")
    client.send("orders", "b")

    assert by_hand(client, spark) == []

    assert re.search(
        r"Skipped: orders/revenue has no batch yet, up to 2 events wait for a tick, the first for "
        r"\d+ s: check that `pgque ticker` or pg_cron runs, and that the queue is not paused\.",
        capfd.readouterr().err,
    )


def test_a_run_by_hand_takes_the_batch_that_waits_with_a_part_before_a_new_one(
    client: Client, spark: SparkSession
) -> None:
    share(client, "1", "2", "3")
    for text in ("a", "b", "c"):
        publish(client, [text])
    claim_part(client, "1")
    claim_part(client, "3").release()

    assert by_hand(client, spark) == [["b"]]


def test_a_run_by_hand_is_skipped_while_each_part_is_at_work(
    client: Client, spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    share(client, "1", "2")
    for text in ("a", "b", "c"):
        publish(client, [text])
    claims = [claim_part(client, "1"), claim_part(client, "2")]

    assert by_hand(client, spark) == []
    assert (
        "Skipped: each of the 2 subconsumers of orders/revenue has a run" in capfd.readouterr().err
    )
    for claim in claims:
        claim.ack()


def test_a_run_by_hand_drains_a_shared_consumer(client: Client, spark: SparkSession) -> None:
    @pgque_asset(queue="orders", consumer="revenue", max_batches=3)
    def draining(batch: SparkBatch) -> list[str]:
        return [row.ev_data for row in batch.events().collect()]

    share(client, "1", "2")
    publish(client, ["a"])
    claim_part(client, "1").release()
    publish(client, ["b"])

    assert by_hand(client, spark, draining) == [["a"], ["b"]]


def test_a_run_whose_consumer_was_removed_fails_and_registers_no_other(
    client: Client, spark: SparkSession, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    request = the_request(evaluate(build_pgque_sensor([revenue]), client.url, instance))
    client.unregister_consumer("orders", "revenue")

    result = materialize(revenue, client.url, spark, tags=dict(request.tags))

    (failure,) = [event for event in result.all_events if event.is_step_failure]
    error = str(failure.step_failure_data.error)
    batch_id = request.tags["pgque/batch_id"]
    assert f"orders/revenue was removed while its batch {batch_id} waited for this run" in error
    assert "pgque register orders revenue" in error
    assert client.consumers("orders") == []


def test_a_run_by_hand_registers_a_consumer_that_is_not_there(
    client: Client, spark: SparkSession
) -> None:
    client.unregister_consumer("orders", "revenue")

    assert by_hand(client, spark) == []
    assert [consumer.name for consumer in client.consumers("orders")] == ["revenue"]


def test_assets_that_share_a_consumer_are_named() -> None:
    @pgque_asset(queue="orders", consumer="revenue")
    def rival(batch: SparkBatch) -> None:
        return None

    with pytest.raises(
        dg.DagsterInvalidDefinitionError,
        match="revenue and rival share the consumer orders/revenue",
    ):
        consumers_of([revenue, rival])


def test_a_run_fails_where_another_asset_of_the_code_location_has_its_consumer(
    client: Client, tmp_path: Path
) -> None:
    """Dagster itself loads the code location and executes the run."""
    (tmp_path / "shop.py").write_text(
        "import dagster as dg\n"
        "from pgque_dagster import PgqueResource, pgque_asset\n"
        "def asset(name, consumer):\n"
        "    @pgque_asset(queue='orders', name=name, consumer=consumer)\n"
        "    def body(batch): pass\n"
        "    return body\n"
        "defs = dg.Definitions(\n"
        "    assets=[asset('one', 'revenue'), asset('two', 'revenue'), asset('other', 'stock')],\n"
        "    resources={'pgque': PgqueResource(url=dg.EnvVar('PGQUE_URL')), 'pyspark': None},\n"
        ")\n"
    )
    publish(client, ["a"])
    client.register_consumer("orders", "stock")  # which has nothing to do

    dagster = Path(sys.executable).with_name("dagster")

    def run(asset: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [dagster, "asset", "materialize", "-f", "shop.py", "--select", asset],
            cwd=tmp_path,
            env={**os.environ, "PGQUE_URL": client.url, "DAGSTER_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=180,
        )

    sharing, alone = run("one"), run("other")

    assert sharing.returncode != 0
    assert "one and two share the consumer orders/revenue" in sharing.stderr + sharing.stdout
    assert alone.returncode == 0, alone.stderr
    assert client.next_batch("orders", "revenue") is not None
