"""A driver program that stores and acks a batch, and is stopped or killed on the way.

python -m tests.support.publishing_driver <url> <kind of table> <location> <signal> <point> <file>

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

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pgque_dagster.client import Client
from pgque_dagster.spark import SparkBatch
from pgque_dagster.spark.sinks import publication
from tests.support.stored_tables import TABLES

FILES = 8
# Renewals get through on a loaded machine.
LEASE = timedelta(seconds=3)
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
    """Claims the next batch, stores it in several files and acks it; says if there was one."""
    with Client(url) as client:
        claimed = client.claim("orders", "revenue", owner=f"{os.getpid()}", ttl=LEASE)
        if claimed is None:
            return False
        with claimed.keep_alive():
            batch = SparkBatch(spark, claimed, url)
            TABLES[kind].write(batch, reaching(numbers(batch), at), location)
            at("between publishing and ack")
            claimed.ack()
    at("after the ack")
    return True


def numbers(batch: SparkBatch) -> DataFrame:
    rows = batch.payload("number bigint").repartition(FILES)
    return rows.withColumn("writer", f.lit(os.getpid()))


def reaching(frame: DataFrame, at: At) -> DataFrame:
    """The same rows, behind a function on the executors that tells which file comes next."""
    points = {partition: point for point, partition in IN_SPARK.items()}

    def tell(partition: int, number: int) -> int:
        if partition in points:
            at(points[partition])
        return number

    reach = f.udf(tell, "bigint")
    return frame.withColumn("number", reach(f.spark_partition_id(), "number"))


class WatchedClaim:
    """A claim that tells of its renewals."""

    def __init__(self, claim: Any, at: At) -> None:
        self._claim, self._at = claim, at

    def renew(self) -> None:
        self._claim.renew()
        self._at("after the lease is renewed")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._claim, name)


class WatchedOutput:
    """An output that tells of the steps of its publication."""

    def __init__(self, output: Any, at: At) -> None:
        self._output, self._at = output, at

    def read(self) -> Any:
        self._at("before it reads the state")
        state = self._output.read()
        self._at("after it reads the state")
        return state

    def replace(self, state: Any) -> Any:
        is_published = self._output.replace(state)
        self._at("after the swap")
        return is_published

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)


def watch(at: At) -> None:
    """Tells of the steps of `publish`, in every sink that calls it."""
    publish, rename = publication.publish, Path.rename

    def publishing(claim: Any, output: Any) -> None:
        publish(WatchedClaim(claim, at), WatchedOutput(output, at))  # type: ignore[arg-type]

    def renaming(path: Path, target: Any) -> Path:
        if Path(target).name.startswith("publication-"):
            at(BETWEEN_RENAMES)
        return rename(path, target)

    for module in list(sys.modules.values()):
        if getattr(module, "publish", None) is publish:
            setattr(module, "publish", publishing)  # noqa: B010
    setattr(Path, "rename", renaming)  # noqa: B010


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
    watch(at)
    store(spark, url, kind, location, at)


if __name__ == "__main__":
    main()
