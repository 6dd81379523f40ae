"""Queues in Spark: batches as DataFrames, the data source `pgque`, and sinks for results."""

from .address import DatabaseAddress
from .batch import SparkBatch
from .cluster.executor_errors import PackageMissing, clear_executor_errors
from .cluster.java import JavaMissing
from .cluster.shipping import ship
from .payload.changes import parse_changes
from .payload.parsing import parse_payloads
from .reading.jdbc import JdbcDriverMissing
from .sinks import DeltaSink, IcebergSink, ParquetSink, PostgresSink, once_per_batch
from .source import register

__all__ = [
    "DatabaseAddress",
    "DeltaSink",
    "IcebergSink",
    "JavaMissing",
    "JdbcDriverMissing",
    "PackageMissing",
    "ParquetSink",
    "PostgresSink",
    "SparkBatch",
    "clear_executor_errors",
    "once_per_batch",
    "parse_changes",
    "parse_payloads",
    "register",
    "ship",
]
