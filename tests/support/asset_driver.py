"""A program that materializes an asset into Postgres and, as a process, kills itself on the way.

python -m tests.support.asset_driver <url> <point>
"""

import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import dagster as dg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pgque_dagster import PgqueResource, PostgresBatchIOManager, SparkBatch, pgque_asset

POINTS = (
    "before the write",
    "while executors write",
    "after staging",
    "inside the ack",
    "after the ack",
)
# Renewals get through on a loaded machine.
LEASE = timedelta(seconds=3)
BALANCE = "create table balance (account text primary key, amount bigint not null)"


class Session:
    """The resource pyspark."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark_session = spark


class Reaching(PostgresBatchIOManager):
    """Says when the rows are staged."""

    def handle_output(self, context: dg.OutputContext, obj: DataFrame) -> None:
        super().handle_output(context, obj)
        _reached("after staging")


_reached: Callable[[str], None] = lambda point: None  # noqa: E731


def run(spark: SparkSession, url: str, at: Callable[[str], None]) -> dg.ExecuteInProcessResult:
    """Materializes the asset from the next batch, saying which point is reached."""
    global _reached
    _reached = at

    @pgque_asset(
        queue="orders",
        consumer="revenue",
        lease_ttl=LEASE,
        io_manager_key="balances",
    )
    def balance(batch: SparkBatch) -> DataFrame:
        at("before the write")
        batch.before_ack(lambda connection: at("inside the ack"))
        frame = batch.payload("account string, amount bigint")
        reach = f.udf(lambda account: at("while executors write") or account)
        return frame.withColumn("account", reach("account"))

    pgque = PgqueResource(url=url)
    resources: dict[str, Any] = {
        "pgque": pgque,
        "pyspark": Session(spark),
        "balances": Reaching(pgque=pgque, mode="add", key=["account"]),
    }
    result = dg.materialize([balance], resources=resources, raise_on_error=False)
    at("after the ack")
    return result


def killing(driver: int, point: str) -> Callable[[str], None]:
    def at(reached: str) -> None:
        if reached == point:
            os.kill(driver, signal.SIGKILL)

    return at


def main() -> None:
    url, point = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    )
    run(spark, url, killing(os.getpid(), point))


if __name__ == "__main__":
    main()
