"""Queues in Spark: a claimed batch as DataFrames, over the data source `pgque`."""

from .address import DatabaseAddress
from .batch import SparkBatch
from .cluster.executor_errors import PackageMissing, clear_executor_errors
from .cluster.java import JavaMissing
from .cluster.shipping import ship
from .payload.changes import parse_changes
from .payload.parsing import parse_payloads
from .reading.jdbc import JdbcDriverMissing
from .sinks import ParquetSink, PostgresSink, once_per_batch
from .source import PgqueDataSource, register

__all__ = [
    "DatabaseAddress",
    "JavaMissing",
    "JdbcDriverMissing",
    "PackageMissing",
    "ParquetSink",
    "PgqueDataSource",
    "PostgresSink",
    "SparkBatch",
    "clear_executor_errors",
    "once_per_batch",
    "parse_changes",
    "parse_payloads",
    "register",
    "ship",
]
