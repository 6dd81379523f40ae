"""The code location of the tests of a live Dagster: two consumers of the queue `orders`.

One stores each event in Parquet, the other adds it up in Postgres. Both stop where a test wants.
There are also a consumer with slots, of another queue, and windows of a third one.
"""

import os
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
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
from tests.support.live.points import AFTER_ACK, AFTER_WRITE, BEFORE_ACK, BEFORE_WRITE, Points

QUEUE = "orders"
LINES = "order_lines"
TOTALS = "order_totals"
CONSUMERS = (LINES, TOTALS)
KEYED, PARTED = "keyed", "parted"
HOURS, HOURLY = "hours", "hourly_lines"

# Longer than a machine that does other work keeps a renewal waiting.
LEASE = timedelta(seconds=10)
PAYLOAD = "event string not null, amount bigint not null"
TABLE = f"create table {TOTALS} (event text primary key, amount bigint not null)"
# One row for each attempt at each event of the consumer with slots, in the order of the attempts.
SEEN = "create table seen (at bigserial, key text, number integer)"


def output() -> Path:
    return Path(os.environ["PGQUE_DEMO_OUTPUT"])


def remote_file(folder: Path) -> Path:
    """Returns the file with the URL of a Spark Connect server, beside the folder of the output."""
    return folder / "spark_remote"


def spark_config() -> dict[str, str]:
    """The session on the Connect server that the file names; without the file, one in the run."""
    place = {"spark.master": "local[2]", "spark.ui.enabled": "false"}
    with suppress(FileNotFoundError):
        place = {"spark.remote": remote_file(output().parent).read_text()}
    return {**place, "spark.sql.shuffle.partitions": "2"}


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


@pgque_asset(queue=QUEUE, lease_ttl=LEASE, io_manager_key="parquet", group_name="shop")
def order_lines(batch: SparkBatch) -> DataFrame:
    """Each event as a row of Parquet."""
    reach(LINES, BEFORE_WRITE)
    return batch.payload(PAYLOAD)


@pgque_asset(queue=QUEUE, lease_ttl=LEASE, io_manager_key="postgres", group_name="shop")
def order_totals(batch: SparkBatch) -> DataFrame:
    """The amounts of each event, added up in Postgres: an event that counts twice shows."""
    reach(TOTALS, BEFORE_WRITE)
    return batch.payload(PAYLOAD)


def partitions_file(folder: Path) -> Path:
    """Returns the file with the number of slots, beside the folder of the output."""
    return folder.parent / "partitions"


def slots() -> int:
    """Returns what the file says, or two."""
    path = partitions_file(output())
    return int(path.read_text()) if path.exists() else 2


def parted(batch: SparkBatch) -> DataFrame:
    """Each event as a row of Parquet. Notes the order in which they are computed."""
    reach(PARTED, BEFORE_WRITE)
    frame = batch.payload("number int not null", keep=["ev_id", "ev_extra1"])
    with psycopg.connect(os.environ["PGQUE_URL"]) as connection, connection.cursor() as cursor:
        cursor.executemany(
            "insert into seen (key, number) values (%s, %s)",
            [(row.ev_extra1, row.number) for row in frame.orderBy("ev_id").collect()],
        )
    return frame


def window() -> dg.AssetsDefinition:
    """Each event of the hour as a row of Parquet."""
    hours = dg.HourlyPartitionsDefinition("2026-01-01-00:00", "2026-01-02-00:00")
    return pgque_asset(
        queue=HOURS,
        partitions_def=hours,
        name=HOURLY,
        io_manager_key="windows",
    )(lambda batch: batch.payload("event string not null"))


def shop(executor: dg.ExecutorDefinition) -> dg.Definitions:
    """All assets, executed by this executor."""
    assets = [order_lines, order_totals]
    with_slots = pgque_asset(
        queue=KEYED,
        lease_ttl=LEASE,
        start_at="earliest",
        partitions=slots(),
        io_manager_key="parted",
    )(parted)
    spark = spark_config()
    pgque = PgqueResource(
        url=dg.EnvVar("PGQUE_URL"),
        executors_url_env="PGQUE_SECRET_URL" if "spark.remote" in spark else None,
    )
    return dg.Definitions(
        assets=[
            *build_queue_assets(QUEUE, producers=["shop"], consumers=assets),
            *assets,
            with_slots,
            window(),
        ],
        asset_checks=build_dead_letter_checks([QUEUE]),
        sensors=[
            build_pgque_sensor(
                [*assets, with_slots],
                max_events=250_000,
                backoff=timedelta(seconds=1),
                default_status=dg.DefaultSensorStatus.RUNNING,
            ),
        ],
        resources={
            "pgque": pgque,
            "pyspark": LazyPySparkResource(spark_config=spark),
            "parted": StoppingParquet(consumer=PARTED, base_dir=str(output())),
            "windows": ParquetBatchIOManager(base_dir=str(output())),
            "parquet": StoppingParquet(consumer=LINES, base_dir=str(output())),
            "postgres": StoppingPostgres(consumer=TOTALS, pgque=pgque, mode="add", key=["event"]),
        },
        executor=executor,
    )


@dg.definitions
def defs() -> dg.Definitions:
    return shop(dg.in_process_executor)
