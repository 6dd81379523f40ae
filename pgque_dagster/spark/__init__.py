"""Queues in Spark: a claimed batch as DataFrames, over the data source `pgque`."""

from .address import DatabaseAddress
from .batch import SparkBatch
from .causes import PackageMissing, clear_causes
from .changes import parse_changes
from .java import JavaMissing, check_java
from .jdbc import JdbcDriverMissing
from .payload import parse_payloads
from .shipping import ship
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
    "check_java",
    "clear_causes",
    "once_per_batch",
    "parse_changes",
    "parse_payloads",
    "register",
    "ship",
]
