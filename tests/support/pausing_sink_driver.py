"""A driver program that adds a batch to Postgres tables and is stopped by SIGSTOP on the way.

python -m tests.support.pausing_sink_driver <url> <url of another database> <folder> <point>

Who starts it makes it the leader of a process group, which is stopped with its JVM.
"""

import os
import sys
from pathlib import Path
from signal import SIGSTOP

import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pgque_dagster.client import Client
from pgque_dagster.spark import PostgresSink, SparkBatch
from pgque_dagster.spark.sinks.stage import Stage
from tests.support.publishing_driver import LEASE, At, signalling

POINTS = (
    "while executors fill a stage",
    "while executors fill a stage elsewhere",
    "behind the merge elsewhere",
    "before the ack",
    "behind the merge in the ack",
)
# Stopped there, a driver holds locks on the rows, and the next attempt's merge waits for it.
HOLDING_LOCKS = ("behind the merge elsewhere", "behind the merge in the ack")


def store(spark: SparkSession, url: str, elsewhere: str, at: At = lambda point: None) -> None:
    """Claims the next batch, adds it up in a table here and in one elsewhere, and acks it."""
    with Client(url) as client:
        claimed = client.claim("orders", "revenue", owner="driver", ttl=LEASE)
        assert claimed is not None
        with claimed.keep_alive():
            batch = SparkBatch(spark, claimed, url)
            frame = batch.payload("account string, amount bigint")
            PostgresSink("balance", key=["account"], mode="add").write(
                batch, reaching(frame, "while executors fill a stage", at)
            )
            PostgresSink("balance", key=["account"], mode="add", url=elsewhere).write(
                batch, reaching(frame, "while executors fill a stage elsewhere", at)
            )
            at("before the ack")
            batch.before_ack(lambda connection: at("behind the merge in the ack"))
            claimed.ack()


def reaching(frame: DataFrame, point: str, at: At) -> DataFrame:
    """The same rows, behind a function on the executors that tells where they are."""
    reach = f.udf(lambda account: at(point) or account)
    return frame.withColumn("account", reach("account"))


def watch_merges(elsewhere: str, at: At) -> None:
    """Tells of merges into the other database, before they are committed."""
    merge = Stage.merge
    name = psycopg.conninfo.conninfo_to_dict(elsewhere)["dbname"]

    def merging(stage: Stage, connection: "psycopg.Connection[tuple[object, ...]]") -> None:
        merge(stage, connection)
        if connection.info.dbname == name:
            at("behind the merge elsewhere")

    setattr(Stage, "merge", merging)  # noqa: B010


def main() -> None:
    url, elsewhere, folder, point = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    )
    at = signalling(os.getpid(), SIGSTOP, point, Path(folder) / "stopped")
    watch_merges(elsewhere, at)
    store(spark, url, elsewhere, at)


if __name__ == "__main__":
    main()
