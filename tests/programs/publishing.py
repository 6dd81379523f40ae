"""A driver program that stores and acks a batch, and is stopped or killed on the way.

python -m tests.programs.publishing <url> <kind of table> <location> <signal> <point> <file>

The kind postgres is a table in the queue's database and one in another, whose URL is the location.
Who starts it makes it the leader of a process group, so that its JVM gets the signal, too. The file
is made when the signal is sent.
"""

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from signal import Signals
from typing import Any

from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pgque_dagster.client import Client
from pgque_dagster.spark import PostgresSink, SparkBatch
from pgque_dagster.spark.sinks import publication
from pgque_dagster.spark.sinks.postgres.stage import Stage
from tests.support.spark.stored_tables import TABLES

FILES = 8
# Renewals get through on a loaded machine.
LEASE = timedelta(seconds=3)
FILLING, FILLING_ELSEWHERE = "while executors fill a stage", "while they fill one elsewhere"
MERGED, MERGED_ELSEWHERE = "behind the merge in the ack", "behind the merge elsewhere"
POSTGRES_POINTS = (
    *("before the write", FILLING, FILLING_ELSEWHERE, MERGED_ELSEWHERE),
    *("before the ack", MERGED, "after the ack"),
)
IN_SPARK = {"before the first file": 0, "between two files": 1, "in the last file": FILES - 1}
POINTS = (
    *IN_SPARK,
    "before it reads the state",
    "after it reads the state",
    "after the lease is renewed",
    "after the swap",
    "between publishing and ack",
    "after the ack",
)
# Of one kind of table.
BETWEEN_RENAMES = "between the removal of earlier rows and the swap"

At = Callable[[str], None]


def silent(point: str) -> None:
    """Does nothing at each point."""


def store(spark: SparkSession, url: str, kind: str, location: str, at: At = silent) -> bool:
    """Claims the next batch, stores it and acks it; says if there was one."""
    with Client(url) as client:
        claimed = client.claim("orders", "revenue", owner=f"{os.getpid()}", ttl=LEASE)
        if claimed is None:
            return False
        with claimed.keep_alive():
            batch = SparkBatch(spark, claimed, url)
            if kind == "postgres":
                add_up(batch, location, at)
            else:
                points = {partition: point for point, partition in IN_SPARK.items()}
                TABLES[kind].write(batch, reaching(numbers(batch), "number", points, at), location)
                at("between publishing and ack")
            claimed.ack()
    at("after the ack")
    return True


def add_up(batch: SparkBatch, elsewhere: str, at: At) -> None:
    """Adds a batch to the table balance here and elsewhere."""
    frame = batch.payload("account string, amount bigint")
    at("before the write")
    for url, point in ((None, FILLING), (elsewhere, FILLING_ELSEWHERE)):
        rows = reaching(frame, "account", {0: point}, at)
        PostgresSink("balance", key=["account"], mode="add", url=url).write(batch, rows)
    at("before the ack")
    batch.before_ack(lambda connection: at(MERGED))


def numbers(batch: SparkBatch) -> DataFrame:
    """The payloads, to be stored in several files."""
    rows = batch.payload("number bigint").repartition(FILES)
    return rows.withColumn("writer", f.lit(os.getpid()))


def reaching(frame: DataFrame, column: str, points: dict[int, str], at: At) -> DataFrame:
    """The same rows, behind a function on the executors that tells the points of partitions."""

    def tell(partition: int, value: Any) -> Any:
        if partition in points:
            at(points[partition])
        return value

    reach = f.udf(tell, frame.schema[column].dataType)
    return frame.withColumn(column, reach(f.spark_partition_id(), column))


class Watched:
    """An object that tells when one of its methods is called or has returned."""

    def __init__(self, watched: Any, at: At, **points: tuple[str | None, str]) -> None:
        self._watched, self._at, self._points = watched, at, points

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._watched, name)
        if name not in self._points:
            return method
        before, after = self._points[name]

        def calling(*arguments: Any) -> Any:
            if before:
                self._at(before)
            result = method(*arguments)
            self._at(after)
            return result

        return calling


def watch(elsewhere: str, at: At) -> None:
    """Tells of the steps of `publish`, in every sink that calls it, and of merges elsewhere."""
    publish, rename, merge = publication.publish, os.rename, Stage.merge

    def publishing(claim: Any, output: Any) -> None:
        read = ("before it reads the state", "after it reads the state")
        publish(
            Watched(claim, at, renew=(None, "after the lease is renewed")),  # type: ignore[arg-type]
            Watched(output, at, read=read, replace=(None, "after the swap")),  # type: ignore[arg-type]
        )

    def renaming(path: Any, target: Any, **where: Any) -> None:
        if Path(target).name.startswith("publication-"):
            at(BETWEEN_RENAMES)
        rename(path, target, **where)

    def merging(stage: Stage, connection: Any) -> None:
        merge(stage, connection)
        if elsewhere and connection.info.dbname == conninfo_to_dict(elsewhere)["dbname"]:
            at(MERGED_ELSEWHERE)

    for module in list(sys.modules.values()):
        if getattr(module, "publish", None) is publish:
            setattr(module, "publish", publishing)  # noqa: B010
    setattr(os, "rename", renaming)  # noqa: B010
    setattr(Stage, "merge", merging)  # noqa: B010


def signalling(group: int, signal: Signals, at_point: str, once: Path) -> At:
    """Sends a signal to a process group at a point, the first time that it is reached."""

    def at(point: str) -> None:
        if point != at_point:
            return
        try:
            once.touch(exist_ok=False)
        except FileExistsError:
            return
        os.killpg(group, signal)

    return at


def main() -> None:
    url, kind, location, signal, point, once = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    )
    at = signalling(os.getpid(), Signals[signal], point, Path(once))
    watch(location if kind == "postgres" else "", at)
    store(spark, url, kind, location, at)


if __name__ == "__main__":
    main()
