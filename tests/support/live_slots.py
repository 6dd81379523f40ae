"""The code location of the live test of slots: one consumer, with two slots or what a file says."""

import os
from datetime import timedelta
from pathlib import Path

import dagster as dg
import psycopg
from dagster_pyspark import LazyPySparkResource
from pyspark.sql import DataFrame

from pgque_dagster import PgqueResource, SparkBatch, build_pgque_sensor, pgque_asset
from tests.support.live_points import BEFORE_WRITE
from tests.support.live_project import LEASE, QUEUE, StoppingParquet, output, reach

PARTED = "parted"
# One row for each attempt at each event, in the order of the attempts.
SEEN = "create table seen (at bigserial, slot text, batch bigint, key text, number integer)"


def partitions_file(folder: Path) -> Path:
    """Returns the file with the number of slots, beside the folder of the output."""
    return folder.parent / "partitions"


def partitions() -> int:
    try:
        return int(partitions_file(output()).read_text())
    except FileNotFoundError:
        return 2


def parted(batch: SparkBatch) -> DataFrame:
    """Each event as a row of Parquet. Notes the order in which they are computed."""
    reach(PARTED, BEFORE_WRITE)
    frame = batch.payload("number int not null", keep=["ev_id", "ev_extra1"])
    with psycopg.connect(os.environ["PGQUE_URL"]) as connection, connection.cursor() as cursor:
        cursor.executemany(
            "insert into seen (slot, batch, key, number) values (%s, %s, %s, %s)",
            [
                (batch.claim.slot, batch.batch_id, row.ev_extra1, row.number)
                for row in frame.orderBy("ev_id").collect()
            ],
        )
    return frame


@dg.definitions
def defs() -> dg.Definitions:
    spark = {
        "spark.master": "local[1]",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
    }
    asset = pgque_asset(
        queue=QUEUE,
        lease_ttl=LEASE,
        start_at="earliest",
        partitions=partitions(),
        max_batches=2,
        io_manager_key="parquet",
    )(parted)
    return dg.Definitions(
        assets=[asset],
        sensors=[
            build_pgque_sensor(
                [asset],
                backoff=timedelta(seconds=1),
                default_status=dg.DefaultSensorStatus.RUNNING,
            ),
        ],
        resources={
            "pgque": PgqueResource(url=dg.EnvVar("PGQUE_URL")),
            "pyspark": LazyPySparkResource(spark_config=spark),
            "parquet": StoppingParquet(consumer=PARTED, base_dir=str(output())),
        },
        executor=dg.in_process_executor,
    )
