"""A program that materializes an asset into Postgres and, as a process, kills itself on the way.

python -m tests.support.asset_driver <url> <point>
"""

import os
import signal
import sys
from collections.abc import Callable

import dagster as dg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pgque_dagster import PgqueResource, PostgresBatchIOManager, SparkBatch, pgque_asset
from tests.dagster.support import SessionHolder

POINTS = (
    "before the write",
    "while executors write",
    "after staging",
    "inside the ack",
    "after the ack",
)
BALANCE = "create table balance (account text primary key, amount bigint not null)"


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

    @pgque_asset(queue="orders", consumer="revenue", io_manager_key="balances")
    def balance(batch: SparkBatch) -> DataFrame:
        at("before the write")
        batch.before_ack(lambda connection: at("inside the ack"))
        frame = batch.payload("account string, amount bigint")
        reach = f.udf(lambda account: at("while executors write") or account)
        return frame.withColumn("account", reach("account"))

    pgque = PgqueResource(url=url)
    balances = Reaching(pgque=pgque, mode="add", key=["account"])
    result = dg.materialize(
        [balance],
        resources={"pgque": pgque, "pyspark": SessionHolder(spark), "balances": balances},
        raise_on_error=False,
    )
    at("after the ack")
    return result


def main() -> None:
    url, point = sys.argv[1:]
    driver = os.getpid()

    def kill(reached: str) -> None:
        if reached == point:
            os.kill(driver, signal.SIGKILL)

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    run(builder.getOrCreate(), url, kill)


if __name__ == "__main__":
    main()
