"""Queues in Spark: a claimed batch as DataFrames, over the data source `pgque`."""

from .batch import SparkBatch
from .java import JavaMissing, check_java
from .source import PgqueDataSource, register

__all__ = ["JavaMissing", "PgqueDataSource", "SparkBatch", "check_java", "register"]
