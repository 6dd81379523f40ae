"""A driver program that writes a batch to all sinks and, as a process, kills itself on the way.

python -m tests.support.sink_driver <url> <url of another database> <folder> <point>
"""

import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pgque_dagster.client import Client
from pgque_dagster.spark import SparkBatch
from pgque_dagster.spark.sinks import ParquetSink, PostgresSink

POINTS = (
    "before the write",
    "while executors write",
    "after the write",
    "inside the ack",
    "after the ack",
)
# Renewals get through on a loaded machine.
LEASE = timedelta(seconds=3)
BALANCE = "create table balance (account text primary key, amount bigint not null)"


def consume(
    spark: SparkSession, url: str, elsewhere: str, folder: str, at: Callable[[str], None]
) -> bool:
    """Claims the next batch, writes it to all sinks and acks it; says whether there was one."""
    with Client(url) as client:
        claimed = client.claim("orders", "revenue", owner="driver", ttl=LEASE)
        if claimed is None:
            return False
        with claimed.keep_alive():
            batch = SparkBatch(spark, claimed, url)
            frame = batch.payload("account string, amount bigint")
            at("before the write")
            ParquetSink(folder).write(batch, frame)
            PostgresSink("balance", key=["account"], mode="add").write(batch, frame)
            PostgresSink("balance", key=["account"], mode="add", url=elsewhere).write(
                batch, interrupted(frame, at)
            )
            at("after the write")
            batch.before_ack(lambda connection: at("inside the ack"))
            claimed.ack()
    at("after the ack")
    return True


def interrupted(frame: DataFrame, at: Callable[[str], None]) -> DataFrame:
    """The same rows, behind a function on the executors that may kill the driver."""
    reach = f.udf(lambda account: at("while executors write") or account)
    return frame.withColumn("account", reach("account"))


def killing(driver: int, point: str) -> Callable[[str], None]:
    def at(reached: str) -> None:
        if reached == point:
            os.kill(driver, signal.SIGKILL)

    return at


def main() -> None:
    url, elsewhere, folder, point = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    )
    consume(spark, url, elsewhere, folder, killing(os.getpid(), point))


if __name__ == "__main__":
    main()
