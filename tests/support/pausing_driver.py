"""A driver program that stores a batch as Parquet and is stopped by SIGSTOP on the way.

python -m tests.support.pausing_driver <url> <folder> <point>

Who starts it makes it the leader of a process group, which is stopped with its JVM.
"""

import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pgque_dagster.client import Batch, Client
from pgque_dagster.spark import ParquetSink, SparkBatch

FILES = 8
# Renewals get through on a loaded machine.
LEASE = timedelta(seconds=3)
IN_SPARK = {"before the first file": 0, "between two files": 1}
AROUND_CALLS = (
    "before its files are set ready",
    "before its lease is checked",
    "after its lease is checked",
    "before an earlier attempt is removed",
    "while an earlier attempt is deleted",
    "before it is published",
    "after it is published",
)
POINTS = (*IN_SPARK, *AROUND_CALLS)

At = Callable[[str], None]


def store(spark: SparkSession, url: str, folder: str, at: At = lambda point: None) -> None:
    """Claims the next batch, stores it in several files and acks it."""
    with Client(url) as client:
        claimed = client.claim("orders", "revenue", owner=f"{os.getpid()}", ttl=LEASE)
        assert claimed is not None
        with claimed.keep_alive():
            batch = SparkBatch(spark, claimed, url)
            ParquetSink(folder).write(batch, reaching(numbers(batch), at))
            claimed.ack()


def numbers(batch: SparkBatch) -> DataFrame:
    return batch.payload("number bigint").repartition(FILES)


def reaching(frame: DataFrame, at: At) -> DataFrame:
    """The same rows, behind a function on the executors that tells which file comes next."""
    points = {partition: point for point, partition in IN_SPARK.items()}

    def tell(partition: int, number: int) -> int:
        if partition in points:
            at(points[partition])
        return number

    reach = f.udf(tell, "bigint")
    return frame.withColumn("number", reach(f.spark_partition_id(), "number"))


def watch_calls(at: At) -> None:
    """Tells of the driver's own steps, by the calls that they make."""
    rename, renew = Path.rename, Batch.renew
    ready = False

    def renaming(path: Path, target: Any) -> Path:
        nonlocal ready
        name = Path(target).name
        if ".ready-" in name:
            at("before its files are set ready")
            ready = True
        elif ".trash-" in name:
            at("before an earlier attempt is removed")
        elif name.startswith("epoch-"):
            at("before it is published")
        renamed = rename(path, target)
        if ".trash-" in name:
            at("while an earlier attempt is deleted")
        elif name.startswith("epoch-"):
            at("after it is published")
        return renamed

    def renewing(batch: Batch) -> None:
        if not ready:
            return renew(batch)
        at("before its lease is checked")
        renew(batch)
        return at("after its lease is checked")

    setattr(Path, "rename", renaming)  # noqa: B010
    setattr(Batch, "renew", renewing)  # noqa: B010


def stopping(driver: int, stopped_at: str, once: Path) -> At:
    """Stops the driver's process group where it is told to, one time."""

    def at(point: str) -> None:
        if point != stopped_at:
            return
        try:
            once.touch(exist_ok=False)
        except FileExistsError:
            return
        os.killpg(driver, signal.SIGSTOP)

    return at


def main() -> None:
    url, folder, point = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    )
    at = stopping(os.getpid(), point, Path(f"{folder}.stopped"))
    watch_calls(at)
    store(spark, url, folder, at)


if __name__ == "__main__":
    main()
