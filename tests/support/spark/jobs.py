"""Tells which jobs Spark has run."""

import uuid

from pyspark.sql import SparkSession

from tests.support.runner.waiting import wait_until


def jobs_of(spark: SparkSession, group: str) -> list[int]:
    """The jobs that Spark has run for a group."""
    tracker = spark.sparkContext.statusTracker()
    # Spark tells of jobs in their order, and later than it runs them: this one is the last.
    last = uuid.uuid4().hex
    spark.sparkContext.setJobGroup(last, "")
    assert spark.sparkContext.parallelize([1]).count() == 1
    wait_until(lambda: tracker.getJobIdsForGroup(last))
    return list(tracker.getJobIdsForGroup(group))
