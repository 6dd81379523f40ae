"""Balances of pgbench's bank, kept from the events of its history."""

import os
from datetime import timedelta
from pathlib import Path

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pyspark.sql import DataFrame

from pgque_dagster import (
    ParquetBatchIOManager,
    PgqueResource,
    SparkBatch,
    build_dead_letter_checks,
    build_pgque_sensor,
    build_queue_assets,
    pgque_asset,
)

from .transforms import HISTORY, sum_deltas

QUEUE = "bank"
OUTPUT = os.environ.get("PGQUE_DEMO_OUTPUT") or str(Path.cwd() / ".pgque" / "output")


@pgque_asset(queue=QUEUE, group_name="bank", lease_ttl=timedelta(seconds=20))
def branch_balances(batch: SparkBatch) -> DataFrame:
    """What each batch adds to the balance of each branch."""
    return sum_deltas(batch.payload(HISTORY), "bid")


@pgque_asset(queue=QUEUE, group_name="bank", lease_ttl=timedelta(seconds=20))
def teller_balances(batch: SparkBatch) -> DataFrame:
    """What each batch adds to the balance of each teller."""
    return sum_deltas(batch.payload(HISTORY), "tid")


@pgque_asset(queue=QUEUE, group_name="bank", lease_ttl=timedelta(seconds=20))
def account_balances(batch: SparkBatch) -> DataFrame:
    """What each batch adds to the balance of each account."""
    return sum_deltas(batch.payload(HISTORY), "aid")


@dg.definitions
def bank() -> dg.Definitions:
    balances = [branch_balances, teller_balances, account_balances]
    checks = build_dead_letter_checks([QUEUE])
    return dg.Definitions(
        assets=[*build_queue_assets(QUEUE), *balances],
        asset_checks=checks,
        sensors=[build_pgque_sensor(balances, max_age=timedelta(seconds=5))],
        jobs=[
            dg.define_asset_job("dead_letter_checks", selection=dg.AssetSelection.checks(*checks))
        ],
        executor=dg.in_process_executor,
        resources={
            "pgque": PgqueResource(url=dg.EnvVar("PGQUE_URL"), queues=[QUEUE]),
            "pyspark": LazyPySparkResource(
                spark_config={
                    "spark.master": "local[2]",
                    "spark.ui.enabled": "false",
                    "spark.sql.shuffle.partitions": "2",
                }
            ),
            "io_manager": ParquetBatchIOManager(base_dir=OUTPUT),
        },
    )
