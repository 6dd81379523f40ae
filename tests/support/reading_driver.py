"""A Spark driver in a process of its own that reads a batch slowly, so that it can be disturbed."""

import sys
import time
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from pgque_dagster.spark import register


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Tells which attempt at a slice read an event; the first at the first slice is slow."""
    context = TaskContext.get()
    assert context is not None
    attempt = context.attemptNumber()
    for batch in batches:
        time.sleep(1 if (context.partitionId(), attempt) == (0, 0) else 0)
        ids = batch.column("ev_id")
        yield pa.RecordBatch.from_arrays(
            [ids, pa.array([attempt] * len(ids), pa.int32())], names=["ev_id", "attempt"]
        )


def main(master: str, url: str, batch_id: str) -> None:
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        # Many small batches, so that the server waits for a slow attempt.
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
        .getOrCreate()
    )
    register(spark)
    options = {"url": url, "batch_id": batch_id, "slices": "4"}
    events = spark.read.format("pgque").options(**options).load()
    read = events.mapInArrow(slowly, "ev_id bigint, attempt int").toArrow()
    print("attempts", *sorted(set(read["attempt"].to_pylist())))
    print("ids", *sorted(read["ev_id"].to_pylist()))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
