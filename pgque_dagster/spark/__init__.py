"""Queues in Spark: batches as DataFrames, the data source `pgque`, and sinks for results.

The names below are loaded on first use, because Arrow and the parsers take long to import.
"""

from typing import TYPE_CHECKING

from ..lazy_names import lazily

if TYPE_CHECKING:
    from .address import DatabaseAddress as DatabaseAddress
    from .batch import SparkBatch as SparkBatch
    from .cluster.executor_errors import PackageMissing as PackageMissing
    from .cluster.executor_errors import clear_executor_errors as clear_executor_errors
    from .cluster.java import JavaMissing as JavaMissing
    from .cluster.java import check_java as check_java
    from .cluster.shipping import ship as ship
    from .data_source import register as register
    from .payload.changes import parse_changes as parse_changes
    from .payload.payloads import parse_payloads as parse_payloads
    from .sharded_batch import ShardedBatch as ShardedBatch
    from .sinks.delta.sink import DeltaSink as DeltaSink
    from .sinks.files.sink import ParquetSink as ParquetSink
    from .sinks.iceberg.sink import IcebergSink as IcebergSink
    from .sinks.postgres.once import once_per_batch as once_per_batch
    from .sinks.postgres.sink import PostgresSink as PostgresSink
    from .testing import batch_from_rows as batch_from_rows

_MODULES = {
    "DatabaseAddress": "address",
    "DeltaSink": "sinks.delta.sink",
    "IcebergSink": "sinks.iceberg.sink",
    "JavaMissing": "cluster.java",
    "PackageMissing": "cluster.executor_errors",
    "ParquetSink": "sinks.files.sink",
    "PostgresSink": "sinks.postgres.sink",
    "ShardedBatch": "sharded_batch",
    "SparkBatch": "batch",
    "batch_from_rows": "testing",
    "check_java": "cluster.java",
    "clear_executor_errors": "cluster.executor_errors",
    "once_per_batch": "sinks.postgres.once",
    "parse_changes": "payload.changes",
    "parse_payloads": "payload.payloads",
    "register": "data_source",
    "ship": "cluster.shipping",
}

__all__ = list(_MODULES)
__getattr__ = lazily(__name__, _MODULES, "spark")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
