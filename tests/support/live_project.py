"""The code location of the tests of a live Dagster: two consumers of the queue `orders`.

One stores each event in Parquet, the other adds it up in Postgres. Both stop where a test wants.
"""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pyspark.sql import DataFrame

from pgque_dagster import (
    ParquetBatchIOManager,
    PgqueResource,
    PostgresBatchIOManager,
    SparkBatch,
    build_dead_letter_checks,
    build_pgque_sensor,
    build_queue_assets,
    pgque_asset,
)
from pgque_dagster.assets.current_batch import current_batch
from tests.support.live_points import AFTER_ACK, AFTER_WRITE, BEFORE_ACK, BEFORE_WRITE, Points

QUEUE = "orders"
LINES = "order_lines"
TOTALS = "order_totals"
CONSUMERS = (LINES, TOTALS)
CHECK_JOB = "orders_checks"
# Without a limit in the settings of the instance, a pool has no effect.
POOL = "shop"

# Longer than a machine that does other work keeps a renewal waiting.
LEASE = timedelta(seconds=10)
PAYLOAD = "event string not null, amount bigint not null"
TABLE = f"create table {TOTALS} (event text primary key, amount bigint not null)"


def output() -> Path:
    return Path(os.environ["PGQUE_DEMO_OUTPUT"])


def reach(consumer: str, point: str) -> None:
    Points(output().parent / "points").reach(consumer, point)


class Stopping(dg.ConfigurableIOManager):
    """Says when a batch is stored, when all is done but the ack, and when the run is over."""

    consumer: str

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        super().handle_output(context, obj)  # type: ignore[safe-super]
        reach(self.consumer, AFTER_WRITE)
        current_batch(context).before_ack(lambda connection: reach(self.consumer, BEFORE_ACK))

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        reach(self.consumer, AFTER_ACK)


class StoppingParquet(Stopping, ParquetBatchIOManager):
    pass


class StoppingPostgres(Stopping, PostgresBatchIOManager):
    pass


@pgque_asset(
    queue=QUEUE,
    lease_ttl=LEASE,
    max_batches=5,
    io_manager_key="parquet",
    group_name="shop",
    pool=POOL,
)
def order_lines(batch: SparkBatch) -> DataFrame:
    """Each event as a row of Parquet."""
    reach(LINES, BEFORE_WRITE)
    return batch.payload(PAYLOAD)


@pgque_asset(queue=QUEUE, lease_ttl=LEASE, io_manager_key="postgres", group_name="shop", pool=POOL)
def order_totals(batch: SparkBatch) -> DataFrame:
    """The amounts of each event, added up in Postgres: an event that counts twice shows."""
    reach(TOTALS, BEFORE_WRITE)
    return batch.payload(PAYLOAD)


@dg.definitions
def defs() -> dg.Definitions:
    assets = [order_lines, order_totals]
    checks = build_dead_letter_checks([QUEUE])
    pgque = PgqueResource(url=dg.EnvVar("PGQUE_URL"))
    spark = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    return dg.Definitions(
        assets=[*build_queue_assets(QUEUE, producers=["shop"]), *assets],
        asset_checks=checks,
        jobs=[dg.define_asset_job(CHECK_JOB, dg.AssetSelection.checks(*checks))],
        sensors=[
            build_pgque_sensor(
                assets,
                max_events=250_000,
                backoff=timedelta(seconds=1),
                default_status=dg.DefaultSensorStatus.RUNNING,
            ),
        ],
        resources={
            "pgque": pgque,
            "pyspark": LazyPySparkResource(spark_config=spark),
            "parquet": StoppingParquet(consumer=LINES, base_dir=str(output())),
            "postgres": StoppingPostgres(consumer=TOTALS, pgque=pgque, mode="add", key=["event"]),
        },
        executor=dg.in_process_executor,
    )
