"""The code location of the live test of windows: the lines of each hour of the queue `orders`."""

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pyspark.sql import DataFrame

from pgque_dagster import ParquetBatchIOManager, PgqueResource, SparkBatch, pgque_window_asset
from tests.support.live_project import QUEUE, output

# A backfill has a run for each partition of the first asset, and one run for all of the second.
HOURLY = "hourly_lines"
AT_ONCE = "hourly_lines_at_once"

HOURS = dg.HourlyPartitionsDefinition(start_date="2026-01-01-00:00", end_date="2026-01-02-00:00")


def lines(batch: SparkBatch) -> DataFrame:
    """Each event of the hour as a row of Parquet."""
    return batch.payload("event string not null")


@dg.definitions
def defs() -> dg.Definitions:
    policies = {HOURLY: None, AT_ONCE: dg.BackfillPolicy.single_run()}
    spark = {
        "spark.master": "local[1]",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
    }
    return dg.Definitions(
        assets=[
            pgque_window_asset(
                queue=QUEUE,
                partitions_def=HOURS,
                name=name,
                backfill_policy=policy,
                io_manager_key="parquet",
            )(lines)
            for name, policy in policies.items()
        ],
        resources={
            "pgque": PgqueResource(url=dg.EnvVar("PGQUE_URL")),
            "pyspark": LazyPySparkResource(spark_config=spark),
            "parquet": ParquetBatchIOManager(base_dir=str(output())),
        },
        executor=dg.in_process_executor,
    )
