"""Sinks for the results of batches. Another attempt at a batch does not count it twice."""

from .delta import DeltaSink
from .iceberg import IcebergSink
from .once import once_per_batch
from .parquet import ParquetSink
from .postgres import PostgresSink

__all__ = ["DeltaSink", "IcebergSink", "ParquetSink", "PostgresSink", "once_per_batch"]
