"""Tells which jobs Spark has run."""

import time
import uuid

from pyspark.sql import SparkSession


def jobs_of(spark: SparkSession, group: str) -> list[int]:
    """The jobs that Spark has run for a group."""
    tracker = spark.sparkContext.statusTracker()
    # Spark tells of jobs in their order, and later than it runs them: this one is the last.
    last = uuid.uuid4().hex
    spark.sparkContext.setJobGroup(last, "")
    assert spark.sparkContext.parallelize([1]).count() == 1
    deadline = time.monotonic() + 60
    while not tracker.getJobIdsForGroup(last):
        assert time.monotonic() < deadline, "Spark does not tell of its jobs"
        time.sleep(0.05)
    return list(tracker.getJobIdsForGroup(group))
