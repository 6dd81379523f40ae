"""Queues in Spark: batches as DataFrames, the data source `pgque`, and sinks for results.

The names below are loaded on first use, because Arrow and the parsers take long to import.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..missing_modules import naming_extras

if TYPE_CHECKING:
    from .address import DatabaseAddress
    from .batch import SparkBatch
    from .cluster.executor_errors import PackageMissing, clear_executor_errors
    from .cluster.java import JavaMissing
    from .cluster.shipping import ship
    from .payload.changes import parse_changes
    from .payload.payloads import parse_payloads
    from .sinks.delta.sink import DeltaSink
    from .sinks.files.sink import ParquetSink
    from .sinks.iceberg.sink import IcebergSink
    from .sinks.postgres.once import once_per_batch
    from .sinks.postgres.sink import PostgresSink
    from .source import register

__all__ = [
    "DatabaseAddress",
    "DeltaSink",
    "IcebergSink",
    "JavaMissing",
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

_MODULES = {
    "DatabaseAddress": "address",
    "DeltaSink": "sinks.delta.sink",
    "IcebergSink": "sinks.iceberg.sink",
    "JavaMissing": "cluster.java",
    "PackageMissing": "cluster.executor_errors",
    "ParquetSink": "sinks.files.sink",
    "PostgresSink": "sinks.postgres.sink",
    "SparkBatch": "batch",
    "clear_executor_errors": "cluster.executor_errors",
    "once_per_batch": "sinks.postgres.once",
    "parse_changes": "payload.changes",
    "parse_payloads": "payload.payloads",
    "register": "source",
    "ship": "cluster.shipping",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with naming_extras(name, "spark"):
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
