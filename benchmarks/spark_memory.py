"""Measures the memory of a Spark driver while executors read batches of different sizes."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from benchmarks.measure import Result
from pgque_dagster.client import Client
from pgque_dagster.spark import SparkBatch


def measure(url: str, fill: Callable[[str, str, int], int]) -> Result:
    """Reads batches of 1M and 10M events, each with a new driver and executor."""
    peaks = {}
    for name, events in (("million", 1_000_000), ("millions", 10_000_000)):
        batch_id = fill(url, name, events)
        command = [sys.executable, "-m", "benchmarks.spark_memory", url, name, str(batch_id)]
        root = Path(__file__).parent.parent
        answer = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, text=True)
        peaks[name] = int(answer.stdout.split()[-1])
    return Result(
        what="driver memory for a batch of 10M events",
        against="of 1M",
        figure=peaks["millions"] / peaks["million"],
        better="<=",
        target=1.2,
        detail=f"{peaks['millions'] >> 20}/{peaks['million'] >> 20} MB",
    )


def peak_of_driver(url: str, queue: str, batch_id: int) -> int:
    """Reads a batch on an executor; returns the driver's peak memory in bytes, Python and Java."""
    spark = (
        SparkSession.builder.master("local-cluster[1,2,2048]")
        .config("spark.executor.memory", "2g")
        .config("spark.driver.memory", "512m")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    with Client(url) as client:
        batch = client.claim(queue, "bench", owner="benchmark", batch_id=batch_id)
        assert batch is not None
        events = SparkBatch(spark, batch, url).events()
        events.write.format("noop").mode("overwrite").save()
    java = next(each for each in psutil.Process().children() if each.name() == "java")
    peak = sum(_peak(each) for each in (java, psutil.Process()))
    spark.stop()
    return peak


def _peak(process: psutil.Process) -> int:
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"process {process.pid} has no VmHWM")


if __name__ == "__main__":
    print(peak_of_driver(sys.argv[1], sys.argv[2], int(sys.argv[3])))
