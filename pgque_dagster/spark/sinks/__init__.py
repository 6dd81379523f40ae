"""Where a batch's results go so that doing a batch again changes nothing."""

from .once import once_per_batch
from .parquet import ParquetSink
from .postgres import PostgresSink

__all__ = ["ParquetSink", "PostgresSink", "once_per_batch"]
