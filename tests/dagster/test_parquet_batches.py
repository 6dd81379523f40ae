"""Batches as directories of Parquet: an attempt replaces what an earlier one stored."""

from pathlib import Path

import dagster as dg
from pyspark.sql import SparkSession

from pgque_dagster import ParquetBatchIOManager, SparkBatch, pgque_asset
from pgque_dagster.client import Client
from tests.dagster.support import materialize
from tests.support.events import publish


@pgque_asset(queue="orders", consumer="revenue")
def totals(batch: SparkBatch) -> object:
    return batch.payload("id bigint not null")


@pgque_asset(queue="orders", consumer="revenue", name="totals")
def crashing(batch: SparkBatch) -> object:
    yield dg.Output(batch.payload("id bigint not null"))
    raise RuntimeError("after the output was stored, before the ack")


def test_a_downstream_asset_reads_each_event_of_all_batches_once(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    io_manager = ParquetBatchIOManager(base_dir=str(tmp_path / "with space"))
    publish(client, [{"id": 1}, {"id": 2}])
    batch_id = client.next_batch("orders", "revenue")

    first = materialize(crashing, client.url, spark, io_manager=io_manager)
    second = materialize(totals, client.url, spark, io_manager=io_manager)
    publish(client, [{"id": 3}])
    third = materialize(totals, client.url, spark, io_manager=io_manager)

    assert [run.success for run in (first, second, third)] == [False, True, True]
    rows = io_manager.load_input(dg.build_input_context(asset_key=totals.key)).collect()
    assert sorted(row.id for row in rows) == [1, 2, 3]
    assert {row.id for row in rows if row.batch_id == batch_id} == {1, 2}
